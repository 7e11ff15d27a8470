"""The session stream over a real gRPC server, in front of an engine whose core the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from headrace_engine.errors import Internal
from headrace_engine.result_types import FinishReason
from headrace_engine.service.convert.status import to_error
from headrace_engine.service.server import EngineServer
from headrace_proto.v1 import request_pb2, request_service_pb2_grpc, session_pb2
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse
from support.clocks.waiting import wait_until
from support.engine.rig import Rig
from support.models.tiny_models import make_tiny_llama
from support.scripted.core import ScriptedCore
from unit.service.conftest import fields_of, reason_of

OPEN = SessionRequest(options={"client": "test 1"})


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


class Stream:
    """One session, from its client's side."""

    def __init__(self, rig: Rig, core: ScriptedCore, channel: grpc.aio.Channel) -> None:
        self.rig, self.core = rig, core
        self.call = request_service_pb2_grpc.RequestServiceStub(channel).Session()

    async def say(self, message: SessionRequest | None = None, **fields: Any) -> None:
        await self.call.write(message or SessionRequest(**fields))

    async def hear(self) -> SessionResponse:
        found = await self.call.read()
        assert found is not grpc.aio.EOF
        return found

    async def hear_until(self, field: str) -> list[SessionResponse]:
        """Messages up to the first that has a field."""
        found = [await self.hear()]
        while not getattr(found[-1], field):
            found.append(await self.hear())
        return found

    async def start(self, **config: Any) -> tuple[str, int]:
        """Start a request; returns its handle, and the key that the core knows it by."""
        accepted = await self.rig.start(config={"max_new_tokens": 60, **config})
        return accepted.handle, self.rig.added().key

    async def open(self, **attach: Any) -> SessionResponse:
        """Open, attach channel 1, and hear what stands then."""
        await self.say(OPEN)
        opened = await self.hear()
        if attach:
            await self.say(attach=[{"channel": 1, **attach}])
            return await self.hear()
        return opened

    async def failure(self) -> grpc.aio.AioRpcError:
        """What the session ends with."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while True:
                await self.hear()
        return caught.value


@pytest.fixture
async def stream(model_path: Path) -> AsyncIterator[Stream]:
    rig = Rig(model_path)
    core = await rig.run()
    server = EngineServer(rig.engine, reflection=False)
    address = server.listen("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stream = Stream(rig, core, channel)
        yield stream
        stream.call.cancel()
    await server.stop(None)
    await gone(stream)  # The server does not wait for what it cancelled.
    await rig.engine.close()


async def test_the_first_message_says_who_serves_and_how_often_to_ping(stream):
    opened = (await stream.open()).opened
    engine = stream.rig.engine
    assert (opened.server, opened.instance_id) == ("e1", engine.instance_id)
    assert (opened.ping_interval.seconds, opened.ping_timeout.seconds) == (10, 30)


async def test_tokens_statuses_and_the_end_of_a_sequence_arrive(stream):
    handle, key = await stream.start()
    (attached,) = (await stream.open(handle=handle)).attached
    assert (attached.channel, attached.position, attached.checksum, attached.generated_length) == (1, 0, 0, 0)
    assert attached.status == request_pb2.GENERATE_STATUS_INIT
    stream.core.step({key: 9}, scheduled={key: 2})
    first = await stream.hear()
    step = first.step
    assert (list(step.channels), list(step.positions), list(step.counts)) == ([1], [0], [1])
    assert (list(step.token_ids), len(step.texts)) == ([9], 1)
    (change,) = first.status_changes
    assert change.status == request_pb2.GENERATE_STATUS_CONTEXT_FINISHED
    assert (change.prefix.prefix_cache_len, change.prefix.prefix_len_gpu) == (2, 2)
    stream.core.step({key: 10}, ended={key: FinishReason.EOS})
    last = await stream.hear()
    (ended,) = last.ends
    assert (list(last.step.token_ids), list(last.step.positions)) == ([10], [1])
    assert (ended.channel, ended.end.position, ended.end.finish_reason) == (1, 2, request_pb2.FINISH_REASON_EOS)
    assert ended.end.status == request_pb2.GENERATE_STATUS_FINISHED
    assert ended.end.checksum == last.step.checksums[0]
    assert ended.end.stat.generated_token_length == 2


async def test_one_step_of_many_sequences_is_one_message(stream):
    started = [await stream.start() for _ in range(8)]
    await stream.say(OPEN)
    await stream.say(attach=[{"channel": n, "handle": handle} for n, (handle, _) in enumerate(started, 1)])
    await stream.hear_until("attached")
    stream.core.step({key: 20 + n for n, (_, key) in enumerate(started, 1)})
    step = (await stream.hear()).step
    assert list(step.channels) == list(range(1, 9))
    assert list(step.token_ids) == list(range(21, 29))
    assert list(step.counts) == [1] * 8


async def test_logprobs_stand_with_the_rows_whose_config_asked(stream):
    plain, plain_key = await stream.start()
    asked, asked_key = await stream.start(logprobs=True)
    await stream.say(OPEN)
    await stream.say(attach=[{"channel": 1, "handle": plain}, {"channel": 2, "handle": asked}])
    await stream.hear_until("attached")
    stream.core.step({plain_key: 5, asked_key: 6}, logprobs=[-1.0, -0.25])
    (details,) = (await stream.hear()).step.details
    assert (details.row, list(details.logprobs.token_logprobs)) == (1, [-0.25])


async def test_most_likely_ids_stand_with_the_rows_whose_config_asked(stream):
    plain, plain_key = await stream.start()
    asked, asked_key = await stream.start(logprobs=True, top_logprobs=2)
    await stream.say(OPEN)
    await stream.say(attach=[{"channel": 1, "handle": plain}, {"channel": 2, "handle": asked}])
    await stream.hear_until("attached")
    tops = {"top_counts": [0, 2], "top_ids": [6, 9], "top_logprobs": [-0.25, -2.0]}
    stream.core.step({plain_key: 5, asked_key: 6}, logprobs=[-1.0, -0.25], **tops)
    (details,) = (await stream.hear()).step.details
    found = details.logprobs
    assert (details.row, found.top_count, list(found.top_ids), list(found.top_logprobs)) == (1, 2, [6, 9], [-0.25, -2])


async def test_a_slow_reader_gets_everything_in_few_messages(stream):
    handle, key = await stream.start()
    await stream.open(handle=handle)
    for token_id in range(50):
        stream.core.step({key: token_id})
    stream.core.step(ended={key: FinishReason.MAX_LENGTH})
    messages = await stream.hear_until("ends")
    assert [token for message in messages for token in message.step.token_ids] == list(range(50))
    assert len(messages) <= 2


async def test_bc159_a_failed_attach_is_told_and_the_others_go_on(stream):
    handle, key = await stream.start()
    lost = "e1/0123456789abcdef/" + "ab" * 16
    await stream.say(OPEN)
    bad = [
        {"channel": 2, "handle": lost},
        {"channel": 3, "handle": "nonsense"},
        {"channel": 4, "handle": handle, "from_position": 1},
        {"channel": 5, "handle": handle, "index": 1},
        {"channel": 6, "handle": handle, "owner": "somebody else"},
    ]
    await stream.say(attach=[{"channel": 1, "handle": handle}, *bad])
    errors = (await stream.hear_until("errors"))[-1].errors
    assert [(each.channel, each.handle, each.index) for each in errors] == [
        (each["channel"], each["handle"], each.get("index", 0)) for each in bad
    ]
    reasons = [to_error(each.status).reason for each in errors]
    unknown = "UNKNOWN_REQUEST"
    assert reasons == ["ENGINE_LOST", unknown, "POSITION_OUT_OF_RANGE", unknown, unknown]
    stream.core.step({key: 9})
    assert list((await stream.hear()).step.token_ids) == [9]


async def test_what_fails_for_one_sequence_ends_its_channel_alone(stream, log):
    (broken, broken_key), (sound, sound_key) = [await stream.start() for _ in range(2)]
    await stream.say(OPEN)
    await stream.say(attach=[{"channel": 1, "handle": broken}, {"channel": 2, "handle": sound}])
    await stream.hear_until("attached")
    stream.rig.engine._registry.find(broken, "").sequences[0].times.handovers = 2**32
    ended = {broken_key: FinishReason.EOS, sound_key: FinishReason.EOS}
    stream.core.step({broken_key: 5, sound_key: 6}, ended=ended)
    heard = await stream.hear_until("errors")
    assert [end.channel for message in heard for end in message.ends] == [2]
    (failure,) = heard[-1].errors
    assert (failure.channel, failure.handle) == (1, broken)
    assert to_error(failure.status).reason == "ENGINE_FAULT"
    assert [event["kind"] for event in log if event["event"] == "request_failed"] == ["ValueError"]
    await stream.say(attach=[{"channel": 3, "handle": sound}])
    assert [end.channel for message in await stream.hear_until("ends") for end in message.ends] == [3]


async def test_releasing_a_request_ends_its_channels(stream):
    handle, _ = await stream.start()
    await stream.open(handle=handle)
    await stream.rig.engine.release_request(handle, "")
    (failure,) = (await stream.hear_until("errors"))[-1].errors
    assert (failure.channel, failure.handle) == (1, handle)
    assert to_error(failure.status).reason == "UNKNOWN_REQUEST"


async def test_the_window_holds_back_and_an_ack_lets_go(stream):
    handle, key = await stream.start()
    await stream.open(handle=handle, window=2)
    for token_id in (5, 6, 7):
        stream.core.step({key: token_id})
    message = (await stream.hear_until("windows"))[-1]
    (window,) = message.windows
    assert (window.channel, window.position, window.limit) == (1, 2, 2)
    await stream.say(acks=[{"channel": 1, "position": 2}])
    assert list((await stream.hear()).step.token_ids) == [7]


async def test_a_session_is_a_reader_until_it_detaches_or_leaves(stream):
    handle, _ = await stream.start()
    await stream.open(handle=handle)
    await stream.say(attach=[{"channel": 2, "handle": handle}])
    await stream.hear()
    assert await attached(stream, handle) == 2
    await stream.say(detach=[2], ping={"number": 1})
    await stream.hear()
    assert await attached(stream, handle) == 1
    stream.call.cancel()
    await gone(stream)
    assert await attached(stream, handle) == 0


async def attached(stream: Stream, handle: str) -> int:
    view, _ = await stream.rig.engine.get_request(handle=handle)
    return view.attached


async def gone(stream: Stream) -> None:
    """Until the engine noticed that the client is gone."""
    await asyncio.to_thread(wait_until, lambda: not len(stream.rig.engine.sessions), "the session is still open")


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
        ([SessionRequest(options={"cache_events": {}})], "options.cache_events", "NOT_SUPPORTED"),
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


async def test_an_error_of_a_sequence_is_in_its_end_record(stream):
    handle, key = await stream.start()
    await stream.open(handle=handle)
    stream.core.step(ended={key: FinishReason.ERROR})
    (ended,) = (await stream.hear_until("ends"))[-1].ends
    assert ended.end.status == request_pb2.GENERATE_STATUS_INTERNAL_ERROR
    assert isinstance(to_error(ended.end.error), Internal)


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
