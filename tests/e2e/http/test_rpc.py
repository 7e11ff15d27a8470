"""Unary calls of the gRPC contract as JSON over HTTP, as curl and web pages make them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2
from headrace import Client, NotFoundError
from headrace_gateway.http.rpc.calls import unary_methods
from headrace_proto.v1 import engine_service_pb2
from support.clocks.waiting import LIMIT
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway


def call(gateway: HttpGateway, method: str, message: Any, **headers: str) -> tuple[int, Any]:
    status, _, answer = gateway.ask("POST", f"/headrace.v1.{method}", message, **headers)
    return status, json.loads(answer)


def test_a_chat_is_started_awaited_and_read(gateway: HttpGateway, grpc: Client) -> None:
    prompt = {"chat": {"messages": [{"role": "user", "content": "Hello"}]}}
    start = {"modelName": "tiny", **prompt, "config": {"maxNewTokens": 12, "seed": "7", "ignoreEos": True}}
    status, started = call(gateway, "RequestService/StartRequest", start)
    assert status == 200, started
    handle = started["request"]["handle"]
    status, _ = call(gateway, "RequestService/SyncRequest", {"handle": handle})
    assert status == 200
    status, state = call(gateway, "RequestService/GetRequest", {"handle": handle})
    assert status == 200
    assert handle in [one.handle for one in grpc.list_requests()]
    assert handle in json.dumps(state)
    assert call(gateway, "RequestService/ReleaseRequest", {"handle": handle})[0] == 200
    assert not grpc.list_requests()


def test_answers_are_those_of_grpc(gateway: HttpGateway, grpc: Client) -> None:
    status, info = call(gateway, "EngineService/GetServerInfo", {})
    assert status == 200
    read = json_format.ParseDict(info, engine_service_pb2.GetServerInfoResponse())
    assert read.name == grpc.server_info().name
    ids = grpc.tokenize("tiny", "Grüße").ids * 20_000  # Large enough to be converted in a thread.
    status, texts = call(gateway, "EngineService/Detokenize", {"modelName": "tiny", "tokenIds": ids})
    assert status == 200, texts
    assert texts["text"] == grpc.detokenize("tiny", ids).text


@pytest.mark.parametrize("method", [f"{one.containing_service.name}/{one.name}" for one in unary_methods()])
def test_every_method_refuses_a_field_it_does_not_know(gateway: HttpGateway, method: str) -> None:
    status, failure = call(gateway, method, {"noSuchField": 1})
    assert status == 400
    assert failure["code"] == "invalid_argument"
    assert "noSuchField" in failure["message"]


def test_failures_have_the_details_of_grpc(gateway: HttpGateway, grpc: Client) -> None:
    with pytest.raises(NotFoundError) as raised:
        grpc.get_model("nothing")
    status, failure = call(gateway, "ModelService/GetModel", {"modelName": "nothing"})
    assert (status, failure["code"], failure["message"]) == (404, "not_found", raised.value.message)
    detail = failure["details"][0]
    assert detail["type"] == "google.rpc.ErrorInfo"
    assert detail["debug"]["reason"] == "UNKNOWN_MODEL"
    value = base64.b64decode(detail["value"] + "==")
    assert error_details_pb2.ErrorInfo.FromString(value).reason == "UNKNOWN_MODEL"


def test_a_call_ends_at_its_deadline(gateway: HttpGateway, gate: Gate) -> None:
    gate.shut()
    start = {"modelName": "tiny", "text": "Hello", "config": {"maxNewTokens": 12}}
    status, started = call(gateway, "RequestService/StartRequest", start)
    assert status == 200, started
    handle = started["request"]["handle"]
    status, failure = call(gateway, "RequestService/SyncRequest", {"handle": handle}, **{"connect-timeout-ms": "50"})
    assert (status, failure["code"]) == (504, "deadline_exceeded")
    gate.open()
    assert call(gateway, "RequestService/ReleaseRequest", {"handle": handle})[0] == 200


@pytest.mark.parametrize("given", ["", "soon", "-1", "1.5", "10000000000", "٣"])
def test_a_deadline_is_a_number_of_milliseconds(gateway: HttpGateway, given: str) -> None:
    headers = {"connect-timeout-ms": given.encode().decode("latin-1")}
    status, failure = call(gateway, "EngineService/GetServerInfo", {}, **headers)
    assert (status, failure["code"]) == (400, "invalid_argument")
    assert "connect-timeout-ms" in failure["message"]


@pytest.mark.parametrize("path", ["RequestService/Generate", "RequestService/Session", "ModelService/Nothing"])
def test_streams_and_unknown_methods_are_not_there(gateway: HttpGateway, path: str) -> None:
    assert call(gateway, path, {})[0] == 404


def test_an_install_that_fails_leaves_the_list_readable(gateway: HttpGateway, grpc: Client, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(64))
    config = {"modelName": "broken", "modelPath": str(tmp_path / "broken.gguf")}
    status, failure = call(gateway, "ModelService/InstallModel", {"config": config})
    assert (status, failure["code"]) == (400, "failed_precondition")
    status, models = call(gateway, "ModelService/ListModels", {}, **{"connect-timeout-ms": str(int(1000 * LIMIT))})
    assert status == 200
    assert "tiny" in [one["modelName"] for one in models["models"]]


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/headrace.v1.ModelService/ListModels"])
def test_another_machines_name_is_refused_without_keys(gateway: HttpGateway, path: str) -> None:
    method = "POST" if path.startswith("/headrace") else "GET"
    status, _, answer = gateway.ask(method, path, {}, host="evil.example")
    assert status == 421
    assert b"evil.example" in answer
