"""The session's state machine, case by case."""

from __future__ import annotations

import pytest
from headrace import (
    GenerateStatus,
    InternalServerError,
    UnavailableError,
)
from headrace._streaming.reads import WINDOW
from headrace_proto.v1 import request_pb2, session_pb2
from support.scripted.wire_samples import GENERATING, crc, end_record
from unit.client.streaming.session_rig import IDS, Rig, row


def ends(length: int, channel: int = 1, text: str = "") -> session_pb2.SessionResponse:
    """The end of one channel."""
    end = session_pb2.SequenceEnd(channel=channel, end=end_record(IDS[:length], text))
    return session_pb2.SessionResponse(ends=[end])


def test_the_first_message_has_options_and_everything_to_attach() -> None:
    rig = Rig(2)
    said = rig.said()
    assert said.options.client == "test 1"
    assert [(one.channel, one.handle, one.from_position, one.window, one.owner) for one in said.attach] == [
        (1, "e/i/0", 0, WINDOW, "ann"),
        (2, "e/i/1", 0, WINDOW, "ann"),
    ]
    assert rig.session.outgoing() is None
    rig.subscribe("e/i/2")
    said = rig.said()
    assert not said.HasField("options")
    assert [one.channel for one in said.attach] == [3]


def test_nothing_is_said_without_a_stream() -> None:
    rig = Rig()
    assert rig.session.broken(UnavailableError("cut.")) is not None
    assert rig.session.outgoing() is None
    assert rig.session.wait is None


def test_rows_of_several_channels_reach_their_readers() -> None:
    rig = Rig(2)
    rig.attach()
    message = row(0, 2, channel=2)
    step = message.step
    step.channels.append(1)
    step.positions.append(0)
    step.counts.append(1)
    step.token_ids.append(IDS[0])
    step.texts.append("a")
    step.checksums.append(crc(IDS[:1]))
    logprobs = request_pb2.Logprobs(token_logprobs=[-0.5])
    step.details.add(row=1, logprobs=logprobs)
    message.status_changes.add(channel=1, status=GENERATING, prefix=request_pb2.PrefixReuse(prefix_cache_len=16))
    rig.session.receive(message)
    assert rig.subscriptions[0].reader.status() is GenerateStatus.Generating
    with rig.subscriptions[0].reader.reading():
        found = rig.subscriptions[0].reader.take()
    assert found is not None
    assert (found.text, found.token_logprobs_list, found.prefix_cache_len) == ("a", [-0.5], 16)
    assert rig.read(1) == IDS[:2]


def test_acks_come_each_half_window_or_with_other_messages() -> None:
    rig = Rig()
    rig.attach()
    half = WINDOW // 2
    rig.session.receive(row(0, half - 1))
    assert rig.read() == IDS[: half - 1]
    assert rig.session.outgoing() is None
    rig.subscribe("e/i/9")
    assert [(one.position, one.window) for one in rig.said().acks] == [(half - 1, WINDOW)]
    for begin in range(half - 1, 2 * half - 1, 64):
        rig.session.receive(row(begin, min(begin + 64, 2 * half - 1)))
        rig.read()
    assert [(one.position, one.window) for one in rig.said().acks] == [(2 * half - 1, WINDOW)]


def test_unread_tokens_are_not_acknowledged() -> None:
    rig = Rig()
    rig.attach()
    rig.session.receive(row(0, WINDOW))
    state = session_pb2.WindowState(channel=1, position=WINDOW, limit=WINDOW, generated_length=9000)
    rig.session.receive(session_pb2.SessionResponse(windows=[state]))
    rig.session.receive(ends(3 * WINDOW))
    reader = rig.subscriptions[0].reader
    assert rig.session.outgoing() is None
    assert reader.generated_length == 3 * WINDOW
    # Before the first read the second question hears of the end.
    assert [reader.status() for _ in range(2)] == [GenerateStatus.Generating, GenerateStatus.GenerateFinished]


def test_one_get_fetches_an_ended_sequence_window_after_window() -> None:
    rig = Rig()
    rig.attach()
    rig.session.receive(row(0, WINDOW))
    rig.session.receive(ends(3 * WINDOW))
    reader = rig.subscriptions[0].reader
    with reader.reading():
        for begin in (WINDOW, 2 * WINDOW):
            rig.session.moved(rig.subscriptions[0])
            assert reader.fetching
            assert [(one.position, one.window) for one in rig.said().acks] == [(begin, WINDOW)]
            rig.session.receive(row(begin, begin + WINDOW))
        assert reader.take().ids_from_generate == IDS  # type: ignore[union-attr]
    rig.session.moved(rig.subscriptions[0])
    assert list(rig.said().detach) == [1]


def test_a_new_stream_counts_what_is_unread_against_the_window() -> None:
    rig = Rig()
    rig.attach()
    rig.session.receive(row(0, 1000))
    rig.session.broken(UnavailableError("cut."))
    rig.session.open()
    said = rig.said()
    assert [(one.channel, one.from_position, one.window) for one in said.attach] == [(1, 1000, WINDOW - 1000)]
    fact = session_pb2.Attached(channel=1, position=1000, checksum=crc(IDS[:1000]))
    rig.session.receive(session_pb2.SessionResponse(attached=[fact]))
    rig.session.receive(row(1000, WINDOW))
    assert rig.read() == IDS[:WINDOW]
    assert [(one.position, one.window) for one in rig.said().acks] == [(WINDOW, WINDOW)]


def test_a_window_closed_by_the_server_is_opened_when_possible() -> None:
    rig = Rig()
    rig.attach()
    rig.session.receive(row(0, 10))
    state = session_pb2.WindowState(channel=1, position=10, limit=10, generated_length=20)
    rig.session.receive(session_pb2.SessionResponse(windows=[state]))
    assert [(one.position, one.window) for one in rig.said().acks] == [(0, WINDOW)]
    rig.session.receive(row(10, WINDOW - 10))
    late = session_pb2.WindowState(channel=1, position=WINDOW - 10, limit=WINDOW - 10, generated_length=WINDOW)
    rig.session.receive(session_pb2.SessionResponse(windows=[late]))
    assert rig.session.outgoing() is None
    rig.read()
    assert len(rig.said().acks) == 1


def test_the_end_is_read_before_the_channel_is_detached() -> None:
    rig = Rig()
    rig.attach()
    rig.session.receive(row(0, 5))
    rig.session.receive(ends(5, text="…"))
    assert rig.session.outgoing() is None
    assert rig.read() == IDS[:5]
    assert list(rig.said().detach) == [1]
    assert rig.session.subscriptions == []
    rig.session.receive(row(5, 6))


def test_an_abandoned_reader_stays_until_the_end() -> None:
    rig = Rig()
    rig.attach()
    rig.subscriptions[0].reader.abandon()
    rig.session.moved(rig.subscriptions[0])
    rig.session.receive(row(0, 5))
    assert rig.session.outgoing() is None
    rig.session.receive(ends(9))
    assert list(rig.said().detach) == [1]


def test_a_reader_from_the_middle_takes_its_attachs_checksum() -> None:
    rig = Rig(0)
    late = rig.subscribe("e/i/1", position=7)
    rig.attach()
    rig.session.receive(row(7, 9))
    with late.reader.reading():
        assert late.reader.take().position == 7  # type: ignore[union-attr]
    rig.session.receive(session_pb2.SessionResponse(step=session_pb2.StepBatch(
        channels=[1], positions=[9], counts=[1], token_ids=[IDS[9]], texts=[""], checksums=[crc(IDS[9:10])]
    )))  # fmt: skip
    with pytest.raises(InternalServerError, match="checksum"), late.reader.reading():
        late.reader.take()
