"""What of an engine's failure reaches the client, and what of the gateway's own."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from headrace_gateway.engines import pool as pool_module
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1 import status_pb2
from support.clocks.waiting import LIMIT, happens
from support.scripted.engine_answers import packed, refuse
from unit.gateway.calls.called import calls
from unit.gateway.failures import failing, failure_of


async def test_details_of_an_engines_failure_arrive_byte_for_byte(front, engine):
    info = status_pb2.ErrorInfo(reason="QUEUE_FULL", domain="headrace", metadata={"limit": "256", "model_name": "smol"})
    retry = status_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1200)
    queue = status_pb2.QueueInfo(waiting_ahead=256, max_waiting=256)
    details = [packed("ErrorInfo", info), packed("RetryInfo", retry), packed("QueueInfo", queue, "headrace.v1")]
    sent = status_pb2.Status(code=8, message="256 requests wait", details=details).SerializeToString()

    async def full(request, context):
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "256 requests wait", (("grpc-status-details-bin", sent),)
        )

    engine.script["StopRequest"] = full
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await calls(front)["StopRequest"]()
    assert dict(caught.value.trailing_metadata())["grpc-status-details-bin"] == sent
    failure = failure_of(caught.value)
    assert failure.reported == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert failure.retry_seconds == 1.2
    assert failure.details["QueueInfo"].max_waiting == 256


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED])
async def test_a_failure_without_details_keeps_its_code_and_sentence(front, engine, code):
    async def bare(request, context):
        await context.abort(code, "just so")

    engine.script["StopRequest"] = bare
    failure = await failing(calls(front)["StopRequest"]())
    assert (failure.code, failure.message, failure.details) == (code, "just so", {})


async def test_an_engine_unavailable_by_itself_is_not_unreachable(front, engine):
    async def restarting(request, context):
        await refuse(context, grpc.StatusCode.UNAVAILABLE, "CORE_RESTARTING")

    engine.script["StopRequest"] = restarting
    assert (await failing(calls(front)["StopRequest"]())).reason == "CORE_RESTARTING"
    assert front.gateway.pool.named("e1").view.reachable


@pytest.mark.parametrize("kind", ["StopRequest", "GeneratedElements"])
async def test_bc163_a_cut_engine_call_is_a_status(front, engine, kind):
    async def cut(request, context):
        await context.abort(grpc.StatusCode.CANCELLED, "stopped")

    engine.script[kind] = cut
    failure = await failing(calls(front)[kind](timeout=LIMIT))
    assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("canary-text"), KeyError("canary-text")])
@pytest.mark.parametrize("kind", ["StopRequest", "GeneratedElements"])
async def test_bc163_a_gateway_defect_is_a_status(front, monkeypatch, kind, error):
    def broken(handle):
        raise error

    monkeypatch.setattr(front.gateway.pool, "named", broken)
    failure = await failing(calls(front)[kind](timeout=LIMIT))
    assert failure.reported == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    assert type(error).__name__ in failure.message
    assert "canary-text" not in failure.message


class Panic(BaseException):
    """What native libraries raise."""


@pytest.mark.parametrize("kind", ["StopRequest", "GeneratedElements"])
async def test_f2_a_panic_is_a_status_and_no_silence(front, monkeypatch, kind):
    def broken(handle):
        raise Panic("canary-text")

    monkeypatch.setattr(front.gateway.pool, "named", broken)
    failure = await failing(calls(front)[kind](timeout=LIMIT))
    assert failure.reported == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    assert "canary-text" not in failure.message


async def test_f2_a_defect_in_polling_is_logged_and_polling_goes_on(front, monkeypatch):
    (engine,) = front.gateway.pool.engines
    refresh, polled, reported = engine.refresh, asyncio.Event(), []

    async def broken():
        engine.refresh = again
        raise Panic("canary-text")

    async def again():
        await refresh()
        polled.set()

    def note(where, error):
        reported.append((where, type(error)))
        engine.wake.set()

    monkeypatch.setattr(pool_module, "defect", note)
    monkeypatch.setattr(engine, "refresh", broken)
    engine.wake.set()
    await happens(polled, "no poll follows")
    assert reported == [("refresh", Panic)]


def _delivering(*messages):
    """A Generate that brings these messages and goes on for ever."""

    async def generate(request, context):
        for message in messages:
            await context.write(message)
        await asyncio.Event().wait()

    return generate


ACCEPTED = wire.GenerateResponse(request={"handle": "e1/i/1"})
THREE = wire.GenerateResponse(elements={"token_ids": [1, 2, 3]})


async def _broken(front, engine, messages, cut):
    """How a Generate fails that is cut after these messages."""
    engine.script["Generate"] = _delivering(*messages)
    call = front.requests.Generate(wire.GenerateRequest(model_name="smol"))
    for _ in messages:
        await call.read()
    await cut()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return failure_of(caught.value)


async def test_b6_a_generate_broken_after_tokens_invites_no_retry(front, engine):
    failure = await _broken(front, engine, [ACCEPTED, THREE], engine.stop)
    assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE")
    assert "RetryInfo" not in failure.details
    assert 'engine "e1" does not answer. This call broke off after 3 tokens and cannot be resumed' in failure.message


async def test_b6_a_generate_broken_before_tokens_may_be_retried(front, engine):
    assert (await _broken(front, engine, [ACCEPTED], engine.stop)).retry_seconds == 1.0


async def test_b6_a_generate_cut_by_a_drain_invites_to_no_retry(front, engine):
    failure = await _broken(front, engine, [ACCEPTED, THREE], lambda: front.gateway.calls.drain(0))
    assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert "RetryInfo" not in failure.details
    assert "after 3 tokens" in failure.message
