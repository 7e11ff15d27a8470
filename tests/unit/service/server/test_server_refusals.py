"""What the engine service refuses and how it fails, as callers and logs see it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from headrace_engine.errors import FieldViolation, InvalidArgument, NotFound, OutOfRange, ResourceExhausted, Unavailable
from headrace_engine.service import failures
from headrace_proto.pure.log_budget import BURST, LogBudget
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from structlog.testing import LogCapture
from support.scripted.engine import tokens
from unit.service.conftest import fields_of, reason_of, status_of
from unit.service.server.test_server import failure_of


@pytest.mark.parametrize(
    ("stub", "method", "request_"),
    [
        ("models", "InstallModel", model_service_pb2.InstallModelRequest(engine_ids=["e2"])),
        ("models", "StartModel", model_service_pb2.StartModelRequest(engine_ids=["e2"])),
        ("models", "StopModel", model_service_pb2.StopModelRequest(engine_ids=["e2"])),
        ("models", "ReleaseModel", model_service_pb2.ReleaseModelRequest(engine_ids=["e2"])),
        ("models", "GetModel", model_service_pb2.GetModelRequest(engine_ids=["e2"])),
        ("models", "ListModels", model_service_pb2.ListModelsRequest(engine_ids=["e2"])),
        ("models", "InspectModel", model_service_pb2.InspectModelRequest(engine_id="e2")),
        ("facts", "GetEngineStat", engine_service_pb2.GetEngineStatRequest(engine_ids=["e2"])),
    ],
)
async def test_a_call_for_another_engine_is_refused(front, stub, method, request_):
    error = await failure_of(getattr(getattr(front, stub), method)(request_))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_ENGINE")
    assert "e2" in error.details()
    assert front.engine.calls == []


@pytest.mark.parametrize(
    ("stub", "method", "request_"),
    [
        ("models", "WatchModel", model_service_pb2.WatchModelRequest(engine_ids=["e2"])),
        ("facts", "WatchEngineStat", engine_service_pb2.WatchEngineStatRequest(engine_ids=["e2"])),
    ],
)
async def test_a_watch_of_another_engine_is_refused(front, stub, method, request_):
    error = await failure_of(getattr(getattr(front, stub), method)(request_).read())
    assert reason_of(error) == "UNKNOWN_ENGINE"


async def test_of_several_named_engines_the_others_are_failures(front):
    request = model_service_pb2.StartModelRequest(model_name="smol", engine_ids=["e1", "e2"])
    own, other = (await front.models.StartModel(request)).engines
    assert (own.engine, own.HasField("failure")) == ("e1", False)
    assert (other.engine, other.model_name, other.failure.code) == ("e2", "smol", 5)


async def test_failures_are_readable_with_common_libraries(front):
    front.engine.failures["start_request"] = InvalidArgument(
        "top_p = 2 is out of range", violations=[FieldViolation("config.top_p", "= 2 is out of range")]
    )
    call = front.requests.StartRequest(request_service_pb2.StartRequestRequest(text="hi"))
    error = await failure_of(call)
    status = await rpc_status.aio.from_call(call)
    assert (error.code(), status.message) == (grpc.StatusCode.INVALID_ARGUMENT, "top_p = 2 is out of range")
    assert status == status_of(error)
    info, wrong = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(wrong)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "headrace")
    assert wrong.field_violations[0].field == "config.top_p"


async def test_overload_says_when_to_come_back(front):
    front.engine.failures["generate"] = ResourceExhausted("full", retry_after=1.5, waiting_ahead=9, max_waiting=9)
    error = await failure_of(front.requests.Generate(request_service_pb2.GenerateRequest(text="hi")).read())
    retry = error_details_pb2.RetryInfo()
    assert status_of(error).details[1].Unpack(retry)
    assert (error.code(), retry.retry_delay.ToMilliseconds()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1500)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(NotFound("gone"), grpc.StatusCode.NOT_FOUND), (OutOfRange("below"), grpc.StatusCode.OUT_OF_RANGE)],
)
async def test_reading_an_absent_request_fails_before_any_message(front, failure, code):
    front.engine.failures["read"] = failure
    call = front.requests.GeneratedElements(request_service_pb2.GeneratedElementsRequest(handle="h"))
    assert (await failure_of(call.read())).code() is code


async def test_a_long_refusal_still_arrives(front):
    """Trailers are bounded: a template may fail with a page of text that is not ASCII."""
    long = "поток " * 50_000
    front.engine.failures["start_request"] = InvalidArgument(
        long, reason="BAD_TEMPLATE", violations=[FieldViolation("chat", long)] * 50
    )
    request = request_service_pb2.StartRequestRequest(text="hi")
    error = await failure_of(front.requests.StartRequest(request))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_TEMPLATE")
    assert error.details().startswith("поток поток")
    assert "(300000 characters in all)" in error.details()


@pytest.mark.parametrize(
    "fault", [asyncio.CancelledError(), RuntimeError("secret words"), TimeoutError(), KeyError("x")]
)
async def test_bc163_an_engine_breaking_in_mid_stream_ends_it(front, fault, log):
    front.engine.script = [tokens(0, 5), fault]
    call = front.requests.GeneratedElements(request_service_pb2.GeneratedElementsRequest(handle="h"))
    assert list((await call.read()).elements.token_ids) == [5]
    error = await failure_of(call.read())
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    assert [event["event"] for event in log if event["log_level"] == "error"] == ["request_failed"]


@pytest.mark.parametrize("fault", [asyncio.CancelledError(), RuntimeError("x"), TimeoutError()])
async def test_bc163_an_engine_that_breaks_in_a_call_ends_it(front, fault, log):
    front.engine.failures["start_request"] = fault
    error = await failure_of(front.requests.StartRequest(request_service_pb2.StartRequestRequest(text="hi")))
    assert error.code() is grpc.StatusCode.INTERNAL


async def test_bc197_a_fault_shows_nothing_of_the_request(front, log):
    prompt = "canary in the prompt"
    fault = RuntimeError(f"cannot read {prompt}")
    fault.__cause__ = ValueError(f"{prompt} is bad")
    front.engine.failures["start_request"] = fault
    request = request_service_pb2.StartRequestRequest(model_name="smol", text=prompt, request_id="r1")
    error = await failure_of(front.requests.StartRequest(request))
    reported = [event for event in log if event["log_level"] != "debug"]
    assert "canary" not in f"{error.details()} {status_of(error)} {reported}"
    (event,) = reported
    assert (event["method"], event["request_id"], event["kind"]) == ("StartRequest", "r1", "RuntimeError")
    assert "_called" in event["exception"]
    assert "ValueError\nwhich led to\n" in event["exception"]
    assert event["error_id"] in error.details()


async def test_bc197_a_refusal_is_logged_once_without_its_quotes(front, log):
    front.engine.failures["start_request"] = InvalidArgument(
        'stop word "canary" is empty', violations=[FieldViolation("config.stop_words", '= "canary"')]
    )
    await failure_of(front.requests.StartRequest(request_service_pb2.StartRequestRequest(text="hi", request_id="r1")))
    (event,) = [event for event in log if event["log_level"] != "debug"]
    assert event == {
        "event": "request_refused",
        "log_level": "info",
        "method": "StartRequest",
        "request_id": "r1",
        "code": "INVALID_ARGUMENT",
        "reason": "INVALID_FIELD",
        "fields": ["config.stop_words"],
    }


@pytest.mark.parametrize("kind", ["InstallModel", "StartRequest", "Generate"])
async def test_unknown_fields_are_refused(front, kind):
    request = {
        "InstallModel": model_service_pb2.InstallModelRequest(),
        "StartRequest": request_service_pb2.StartRequestRequest(text="hi"),
        "Generate": request_service_pb2.GenerateRequest(text="hi"),
    }[kind]
    request.config.MergeFromString(b"\xe8\x3f\x01")  # field 1021
    call = getattr(front.models if kind == "InstallModel" else front.requests, kind)(request)
    error = await failure_of(call.read() if kind == "Generate" else call)
    assert (error.code(), fields_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, ["config.#1021"])
    assert "has no field 1021" in error.details()
    assert front.engine.calls == []


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("SyncRequest", request_service_pb2.SyncRequestRequest(), "target"),
        ("GetRequest", request_service_pb2.GetRequestRequest(), "key"),
        ("StartRequest", request_service_pb2.StartRequestRequest(), "prompt"),
    ],
)
async def test_a_choice_that_was_not_made_is_refused_by_name(front, method, request_, field):
    error = await failure_of(getattr(front.requests, method)(request_))
    assert fields_of(error) == [field]


class Panic(BaseException):
    """What native libraries raise."""


async def test_f2_a_panic_in_a_call_is_answered_as_a_fault(front, log):
    """GRPC sends no status for what is no `Exception`, and its client would wait for ever."""
    front.engine.failures["start_request"] = Panic("index out of bounds")
    error = await failure_of(front.requests.StartRequest(request_service_pb2.StartRequestRequest(text="hi")))
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    (event,) = [event for event in log if event["log_level"] == "error"]
    assert event["kind"] == "Panic"
    assert event["error_id"] in error.details()


async def test_f2_a_panic_in_a_stream_is_answered_as_a_fault(front):
    front.engine.script = [tokens(0, 5), Panic("index out of bounds")]
    call = front.requests.GeneratedElements(request_service_pb2.GeneratedElementsRequest(handle="h"))
    assert list((await call.read()).elements.token_ids) == [5]
    error = await failure_of(call.read())
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")


@pytest.mark.parametrize("script", [[], [tokens(0, 5)]], ids=["before", "after"])
async def test_b6_a_generate_invites_a_retry_only_before_tokens(front, script):
    front.engine.script = [*script, Unavailable("away", retry_after=1.0)]
    call = front.requests.Generate(request_service_pb2.GenerateRequest(text="hi"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    kinds = [detail.type_url.rpartition(".")[2] for detail in status_of(caught.value).details]
    assert ("RetryInfo" in kinds) == (not script)
    assert ("broke off after 1 tokens" in caught.value.details()) == bool(script)


def test_f10_a_caller_who_finds_a_defect_fills_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds it says where the log has it."""
    lines = LogCapture()
    monkeypatch.setattr(failures, "_defects", LogBudget(lambda: 5.0))
    log = structlog.wrap_logger(None, processors=[lines])
    texts = [str(failures.fault(log, KeyError("secret"), {})) for _ in range(2 * BURST)]
    logged = [entry["error_id"] for entry in lines.entries if entry["log_level"] == "error"]
    assert 0 < len(logged) <= BURST
    assert [text.rpartition(" ")[2] for text in texts[: len(logged)]] == logged
    assert {text.rpartition(" has ")[2] for text in texts[len(logged) :]} == {
        "details of others of this kind (KeyError)"
    }
