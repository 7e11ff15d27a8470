"""How a session stream ends, and what breaks its rules."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import json_format
from headrace_proto.v1 import request_pb2, session_pb2
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse
from unit.service.conftest import fields_of, reason_of
from unit.service.server.conftest import OPEN, Stream


async def attached(stream: Stream, handle: str) -> int:
    view, _ = await stream.rig.engine.get_request(handle=handle)
    return view.attached


async def test_a_ping_is_answered_with_its_number(stream):
    await stream.open()
    await stream.say(ping={"number": 0})
    answer = await stream.hear()
    assert answer.HasField("pong")
    assert json_format.MessageToDict(answer) == {"pong": {}}
    await stream.say(ping={"number": 2**63})
    assert (await stream.hear()).pong.number == 2**63


async def test_a_half_closed_client_gets_what_is_there_and_ends_well(stream):
    handle, key = await stream.start()
    stream.core.step({key: 9})
    await stream.say(OPEN)
    await stream.say(attach=[{"channel": 1, "handle": handle}])
    await stream.call.done_writing()
    messages = [message async for message in stream.call]
    assert [token for message in messages for token in message.step.token_ids] == [9]
    assert await stream.call.code() is grpc.StatusCode.OK
    assert await attached(stream, handle) == 0


@pytest.mark.parametrize(
    ("messages", "field", "reason"),
    [
        ([SessionRequest()], "options", "INVALID_FIELD"),
        ([OPEN, OPEN], "options", "INVALID_FIELD"),
        ([OPEN, SessionRequest(attach=[{"handle": "h"}])], "attach[0].channel", "INVALID_FIELD"),
        ([OPEN, SessionRequest(attach=[{"channel": 1}, {"channel": 1}])], "attach[1].channel", "INVALID_FIELD"),
    ],
)
async def test_a_client_that_breaks_the_rules_is_told_which(stream, messages, field, reason):
    for message in messages:
        await stream.say(message)
    error = await stream.failure()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (fields_of(error), reason_of(error)) == ([field], reason)


async def test_an_ack_ahead_of_what_was_sent_breaks_the_rules(stream):
    handle, _ = await stream.start()
    await stream.open(handle=handle)
    await stream.say(acks=[{"channel": 1, "position": 1}])
    error = await stream.failure()
    assert (error.code(), fields_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, ["acks[0].position"])


async def test_load_is_told_to_those_who_ask(stream):
    await stream.say(SessionRequest(options=session_pb2.SessionOptions(load=True)))
    (load,) = (await stream.hear_until("load"))[-1].load
    assert (load.model_name, load.running, load.waiting, load.draining, load.core_epoch) == ("smol", 0, 0, False, 1)
    assert load.tokens_free == load.tokens_total > 0
    _, key = await stream.start()
    (load,) = (await stream.hear_until("load"))[-1].load
    assert (load.waiting, load.tokens_to_prefill) == (1, 3)
    stream.core.step({key: 9}, scheduled={key: 2})
    (load,) = (await stream.hear_until("load"))[-1].load
    assert (load.running, load.waiting, load.tokens_to_prefill) == (1, 0, 0)


async def test_a_draining_engine_ends_sequences_then_the_session(stream):
    handle, key = await stream.start()
    await stream.open(handle=handle)
    stream.core.step({key: 9})
    await stream.rig.engine.drain(0.0)
    found: list[SessionResponse] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while True:
            found.append(await stream.hear())
            if found[-1].HasField("closing"):
                await stream.call.done_writing()
    assert (caught.value.code(), reason_of(caught.value)) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    (ended,) = [ended for message in found for ended in message.ends]
    assert ended.end.finish_reason == request_pb2.FINISH_REASON_DRAINED


async def test_a_session_defect_ends_it_with_a_number_and_a_trace(stream, log, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("headrace_engine.service.session_servicer.apply_in_portions", broken)
    await stream.say(OPEN)
    error = await stream.failure()
    assert (error.code(), reason_of(error)) == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    assert "secret" not in error.details()
    assert [event["event"] for event in log if event["log_level"] == "error"] == ["request_failed"]
