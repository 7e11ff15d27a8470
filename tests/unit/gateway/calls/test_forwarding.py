"""What of a call reaches the engine, and what of its answer reaches the client."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from headrace_proto.v1 import engine_service_pb2 as facts_wire
from headrace_proto.v1 import model_service_pb2 as model_wire
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import DEADLINES, LIMIT
from support.scripted.engine_answers import element
from unit.gateway.calls.called import HANDLE, calls
from unit.gateway.conftest import ended, until
from unit.gateway.failures import failing


async def never(request, context):
    await asyncio.Event().wait()


KINDS = ["StartRequest", "StopRequest", "Generate", "GeneratedElements", "GetModel", "WatchModel", "Tokenize"]


async def arrives(front, engine, kind, **more):
    """Makes a call that the engine never answers, and returns it with what the engine heard."""
    call, task = started(front, engine, kind, **more)
    await until(engine, lambda: engine.asked(kind))
    return call, task, engine.asked(kind)[0]


def started(front, engine, kind, **more):
    """Makes a call that the engine never answers."""
    engine.script[kind] = never
    call = calls(front)[kind](**more)
    return call, asyncio.ensure_future(call.read() if isinstance(call, grpc.aio.UnaryStreamCall) else _answer(call))


async def _answer(call):
    return await call


@pytest.mark.parametrize("kind", KINDS)
class TestBc178Deadlines:
    async def test_bc178_no_deadline_stays_none(self, front, engine, kind):
        call, task, heard = await arrives(front, engine, kind)
        assert heard.remaining is None
        call.cancel()
        await ended(asyncio.gather(task, return_exceptions=True))

    async def test_bc178_the_engine_gets_what_is_left(self, front, engine, kind):
        before = time.monotonic()
        call, task, heard = await arrives(front, engine, kind, timeout=LIMIT)
        # gRPC rounds what it sends up to whole seconds: to the gateway, and from there to the engine.
        assert LIMIT - (time.monotonic() - before) - 1 < heard.remaining < LIMIT + 2
        call.cancel()
        await ended(asyncio.gather(task, return_exceptions=True))

    async def test_bc178_a_deadline_in_ten_years_works(self, front, engine, kind):
        call, task, heard = await arrives(front, engine, kind, timeout=10 * 365 * 86400)
        assert heard.remaining > 86400 * 365
        call.cancel()
        await ended(asyncio.gather(task, return_exceptions=True))

    async def test_bc178_an_expired_deadline_fails_at_once(self, front, engine, kind):
        engine.script[kind] = never
        failure = await failing(calls(front)[kind](timeout=-1))
        assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED

    async def test_bc179_the_engine_stops_when_the_deadline_passes(self, front, engine, kind):
        for seconds in DEADLINES:
            task = started(front, engine, kind, timeout=seconds)[1]
            assert (await ended(task)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if engine.asked(kind):
                break
        await until(engine, lambda: kind in engine.cancelled)

    async def test_bc179_the_engine_stops_when_the_client_leaves(self, front, engine, kind):
        call, task, _ = await arrives(front, engine, kind)
        call.cancel()
        await until(engine, lambda: kind in engine.cancelled)
        await ended(asyncio.gather(task, return_exceptions=True))


async def test_the_trace_is_passed_on_and_nothing_else(front, engine):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    metadata = (("authorization", "Bearer k"), ("traceparent", trace), ("x-private", "no"))
    for kind in KINDS:
        call, task, heard = await arrives(front, engine, kind, metadata=metadata)
        assert "authorization" not in heard.metadata
        assert heard.metadata["traceparent"] == trace
        assert "x-private" not in heard.metadata
        call.cancel()
        await ended(asyncio.gather(task, return_exceptions=True))


@pytest.mark.parametrize("sent", ["00-1-2-01", "x" * 7000])
async def test_what_is_no_trace_is_left_out(front, engine, sent):
    for kind in KINDS:
        call, task, heard = await arrives(front, engine, kind, metadata=(("traceparent", sent),))
        assert "traceparent" not in heard.metadata
        call.cancel()
        await ended(asyncio.gather(task, return_exceptions=True))


async def test_a6_engines_can_tell_anonymous_clients_apart(world, front, engine):
    """By their connections, whose addresses stay here."""
    request = wire.StartRequestRequest(model_name="smol", text="a")
    for each in (front, front, world.connection(front.gateway)):
        await each.requests.StartRequest(request, metadata=(("headrace-caller", "me"),))
    callers = [heard.metadata["headrace-caller"] for heard in engine.asked("StartRequest")]
    assert callers[0] == callers[1] != callers[2]
    assert all(len(caller) == 24 and caller.isalnum() for caller in callers)


async def test_bc178_a_dropped_generate_is_cancelled_at_the_engine(front, engine):
    async def one_token(request, context):
        await context.write(wire.GenerateResponse(index=0))
        await asyncio.Event().wait()

    engine.script["Generate"] = one_token
    call = front.requests.Generate(wire.GenerateRequest(model_name="smol"))
    await call.read()
    call.cancel()
    await until(engine, lambda: "Generate" in engine.cancelled)


async def test_bc161_streams_dropped_unread_leave_nothing(front, engine):
    async def chatty(request, context):
        for position in range(100_000):
            await context.write(element(request.handle, 0, position % 9))

    engine.script["GeneratedElements"] = chatty
    streams = [calls(front)["GeneratedElements"]() for _ in range(60)]
    await until(engine, lambda: len(engine.asked("GeneratedElements")) == 60)
    for stream in streams:
        stream.cancel()
    await until(engine, lambda: engine.cancelled.count("GeneratedElements") == 60)
    await front.models.ListModels(model_wire.ListModelsRequest())


async def test_bc170_calls_are_answered_beside_hundreds_of_streams(front, engine):
    engine.script["GeneratedElements"] = never
    streams = [calls(front)["GeneratedElements"]() for _ in range(300)]
    await until(engine, lambda: len(engine.asked("GeneratedElements")) == 300)
    held = engine.hold("r1")
    handle = held.handle.replace("self", "e1", 1)
    await front.requests.StopRequest(wire.StopRequestRequest(handle=handle))
    assert (await front.facts.GetEngineStat(facts_wire.GetEngineStatRequest())).stats
    for stream in streams:
        stream.cancel()
    await until(engine, lambda: engine.cancelled.count("GeneratedElements") == 300)


async def test_bc172_a_slow_reader_gets_every_token_once(front, engine):
    sent = {"slow": 0, "fast": 0}
    total = 1500
    text = "x" * 50_000

    async def many(request, context):
        who = "slow" if request.index else "fast"
        for position in range(total):
            message = element(request.handle, position, 1)
            message.elements.text = text
            await context.write(message)
            sent[who] += 1

    engine.script["GeneratedElements"] = many
    slow = front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=HANDLE, index=1))
    first = await slow.read()
    fast = front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=HANDLE))
    assert [message.elements.position async for message in fast] == list(range(total))
    assert sent["slow"] < total, "75 MB would lie in buffers"
    positions = [first.elements.position]
    while (message := await slow.read()) is not grpc.aio.EOF:
        positions.append(message.elements.position)
    assert positions == list(range(total))


async def test_bc167_messages_far_above_four_mebibytes_pass_both_ways(front, engine):
    text = "é" * 3_000_000
    stream = front.requests.Generate(wire.GenerateRequest(model_name="smol", text=text))
    echoed = [message.elements.text async for message in stream if message.HasField("elements")]
    assert echoed == [text]
    request = wire.StartRequestRequest(model_name="smol")
    request.token_ids.ids.extend(range(1_500_000))
    await front.requests.StartRequest(request)
    assert len(engine.asked("StartRequest")[-1].request.token_ids.ids) == 1_500_000


async def test_f15_a_message_above_the_limit_is_refused_by_name(front):
    call = front.requests.Generate(wire.GenerateRequest(model_name="smol", text="x" * (17 << 20)))
    failure = await failing(call)
    assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(16 << 20) in failure.message


async def test_bc195_a_zero_sent_on_purpose_and_a_false_arrive_as_sent(front, engine):
    request = wire.StartRequestRequest(model_name="smol", request_id="r1", add_special_tokens=False)
    request.config.temperature = 0.0
    request.config.seed = 0
    request.config.do_sample = False
    await front.requests.StartRequest(request)
    (heard,) = engine.asked("StartRequest")
    assert heard.request == request
    assert heard.request.config.HasField("seed")
    assert not heard.request.config.HasField("top_k")


async def test_unknown_fields_reach_the_engine_which_refuses_them(front, engine):
    unknown = b"\x98\x3f\x01"  # field 1011, varint 1
    start = wire.StartRequestRequest(model_name="smol")
    start.MergeFromString(unknown)
    await front.requests.StartRequest(start)
    install = model_wire.InstallModelRequest(engine_ids=["e1"])
    install.config.MergeFromString(b"\x0a\x01m" + unknown)
    await front.models.InstallModel(install)
    assert engine.asked("StartRequest")[0].request.SerializeToString().endswith(unknown)
    assert unknown in engine.asked("InstallModel")[0].request.SerializeToString()
