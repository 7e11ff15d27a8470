"""Callers that leave, engines that die, and gateways that end, while answers are streamed over HTTP."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.servers.books import balanced
from support.servers.crowd import serve
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway, holder_of, http_gateway
from support.servers.processes import Server, gated_engine_server

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 120,
    "ignore_eos": True,
    "seed": 7,
}


def idle(engine: Server) -> None:
    """Wait until the engine holds nothing of any request."""
    with Client(engine.address) as client:
        wait_until(lambda: balanced(client) and not client.list_requests(), "the engine still holds requests")


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_frees_its_slot(gateway: HttpGateway, engine: Server, gate: Gate, stream: bool) -> None:
    gate.shut()
    with closing(HTTPConnection(gateway.http, timeout=LIMIT)) as connection:
        body = json.dumps(CHAT | {"max_tokens": 1900, "stream": stream})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        with Client(engine.address) as client:
            wait_until(lambda: len(client.list_requests()) == 1, "the request does not arrive")
        gate.let(3)
        connection.close()
    with Client(engine.address) as client:
        wait_until(lambda: not client.list_requests(), "the request is not released")
    gate.open()
    idle(engine)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(gateway: HttpGateway) -> None:
    body = json.dumps(CHAT | {"stream": True, "max_tokens": 8})
    command = ["curl", "-sN", f"{gateway.url}/chat/completions", "-H", "content-type: application/json", "-d", body]
    lines = subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stream_goes_on_when_its_engine_is_killed(pair: tuple[dict[str, Server], HttpGateway, Gate]) -> None:
    engines, gateway, gate = pair
    with openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=LIMIT) as client:
        fields: Any = {key: value for key, value in CHAT.items() if key != "ignore_eos"}
        undisturbed = client.chat.completions.create(**fields, extra_body={"ignore_eos": True})
        gate.shut()
        with client.chat.completions.create(**fields, extra_body={"ignore_eos": True}, stream=True) as stream:
            gate.let(12)
            text, chunks = "", iter(stream)
            while len(text) < 3:
                text += next(chunks).choices[0].delta.content or ""
            engines[holder_of(gateway)].process.send_signal(signal.SIGKILL)
            gate.open()
            last = None
            for chunk in chunks:
                text += chunk.choices[0].delta.content or ""
                last = chunk.choices[0].finish_reason
    assert last == "length"
    assert text == undisturbed.choices[0].message.content


def test_a_stream_whose_only_engine_dies_ends_with_an_error(tiny: Path, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "steps")
    with gated_engine_server("e1", gate) as engine:
        with Client(engine.address) as client:
            serve(client, tiny)
        with http_gateway({"e1": engine.address}) as gateway:
            gate.shut()
            with openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=LIMIT) as client:
                stream = client.chat.completions.create(
                    model="tiny", messages=CHAT["messages"], max_tokens=100, stream=True
                )
                with stream:
                    chunks = iter(stream)
                    assert next(chunks).choices[0].delta.role == "assistant"
                    engine.process.kill()
                    with pytest.raises(openai.APIError) as caught:
                        list(chunks)
            assert caught.value.code == "engine_lost"
            assert gateway.ask("GET", "/readyz")[0] == 503
            assert gateway.ask("GET", "/healthz")[0] == 200


def test_a_gateway_that_ends_lets_streams_finish(shared_engine: Server, engine: Server, gate: Gate) -> None:
    with http_gateway({"e1": engine.address}) as gateway, closing(HTTPConnection(gateway.http, timeout=LIMIT)) as one:
        gate.shut()
        body = json.dumps(CHAT | {"stream": True})
        one.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = one.getresponse()
        gateway.server.process.terminate()
        gateway.server.wait_event("draining")
        assert gateway.ask("POST", "/v1/chat/completions", CHAT)[0] == 503
        gate.open()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert gateway.server.process.wait(LIMIT) == 0
