"""The session stream over a real gRPC server, in front of an engine whose core the test plays."""

from __future__ import annotations

from headrace_engine.errors import Internal
from headrace_engine.result_types import FinishReason
from headrace_engine.service.convert.status import to_error
from headrace_proto.v1 import request_pb2
from unit.service.server.conftest import OPEN, Stream, gone


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


async def test_an_error_of_a_sequence_is_in_its_end_record(stream):
    handle, key = await stream.start()
    await stream.open(handle=handle)
    stream.core.step(ended={key: FinishReason.ERROR})
    (ended,) = (await stream.hear_until("ends"))[-1].ends
    assert ended.end.status == request_pb2.GENERATE_STATUS_INTERNAL_ERROR
    assert isinstance(to_error(ended.end.error), Internal)
