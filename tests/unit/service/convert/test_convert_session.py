"""Updates of a session as messages: nothing is lost, and none is larger than 1 MiB."""

from __future__ import annotations

import pytest
from headrace_engine.engine.sessions.session_update import HandleError, SessionUpdate, WindowState
from headrace_engine.errors import NotFound
from headrace_engine.result_types import FinishReason
from headrace_engine.service.convert.session import (
    ATTACHED,
    MODEL_LOAD,
    STATUS_CHANGE,
    WINDOW_STATE,
    apply,
    session_response,
)
from headrace_proto.v1 import session_pb2
from headrace_proto.v1.session_pb2 import SessionRequest, SessionResponse
from support.engine.session_rig import SessionRig
from unit.service.filled import filled, unset_fields

MIB = 1 << 20


async def messages(rig: SessionRig) -> list[SessionResponse]:
    """Everything that there is to tell now."""
    found = []
    while (update := await rig.poll()) is not None:
        found.append(session_response(update, "e1", "0011"))
    return found


def texts(found: list[SessionResponse], channel: int) -> str:
    rows = (row for message in found for row in zip(message.step.channels, message.step.texts, strict=True))
    return "".join(text for number, text in rows if number == channel)


@pytest.mark.parametrize("text", ["x", "é" * 40, "x" * 1000, ""])
async def test_logs_of_many_channels_come_in_messages_up_to_1_mib(text):
    rig = SessionRig()
    story = rig.story(with_logprobs=True)
    for number in range(3000):
        story.log.append(2**32 - 1 - number, text, -0.5)
    story.end(FinishReason.MAX_LENGTH)
    for channel in (1, 2, 3, 2**32 - 1):
        rig.attach(channel)
    found = await messages(rig)
    assert all(message.ByteSize() <= MIB for message in found)
    assert all(texts(found, channel) == text * 3000 for channel in (1, 2, 3, 2**32 - 1))
    assert sum(len(message.ends) for message in found) == 4
    logprobs = [value for message in found for row in message.step.details for value in row.logprobs.token_logprobs]
    assert logprobs == [-0.5] * 4 * 3000


async def test_candidates_of_long_logs_come_in_messages_up_to_1_mib():
    rig = SessionRig()
    story = rig.story(with_logprobs=True, top_count=20)
    ids, values = [2**32 - 1 - place for place in range(20)], [-0.5] * 20
    for number in range(4096):
        story.log.append(2**32 - 1 - number, "x" * 100, -0.5, (ids, values))
    story.end(FinishReason.MAX_LENGTH)
    rig.attach(1)
    found = await messages(rig)
    assert all(message.ByteSize() <= MIB for message in found)
    tops = [row.logprobs for message in found for row in message.step.details]
    assert {top.top_count for top in tops} == {20}
    assert [token_id for top in tops for token_id in top.top_ids] == ids * 4096
    assert sum(len(top.top_logprobs) for top in tops) == 20 * 4096


@pytest.mark.parametrize(("size", "tokens"), [(4, 9000), (16, 4096), (4096, 100), (32_768, 6)])
async def test_vectors_come_in_messages_of_at_most_1_mib(size, tokens):
    rig = SessionRig()
    story = rig.story(with_logprobs=True, hidden_size=size)
    data = [bytes([number % 256]) * (8 * size) for number in range(tokens)]
    for number in range(tokens):
        story.log.append(number, "x", -0.5, None, data[number])
    story.end(FinishReason.MAX_LENGTH)
    rig.attach(1, window=tokens)
    found = await messages(rig)
    assert all(message.ByteSize() <= MIB for message in found)
    rows = [{one.name: one.tensor for one in row.tensors} for message in found for row in message.step.details]
    for name in ("inputs_embedding", "hidden_states"):
        assert sum(row[name].shape[0] for row in rows) == tokens
        assert b"".join(row[name].data for row in rows) == b"".join(both[: 4 * size] for both in data)


async def test_vectors_of_many_rows_come_in_messages_up_to_1_mib():
    rig = SessionRig()
    stories = [rig.story(f"h{number}", with_logprobs=True, hidden_size=1) for number in range(12_000)]
    for channel in range(1, 12_001):
        rig.attach(channel, f"h{channel - 1}")
    await messages(rig)
    for _ in range(3):  # With the third, there is nothing to tell but tokens.
        for story in stories:
            story.log.append(2**32 - 1, "x", -0.5, None, bytes(8))
            story.log.wake()
        found = await messages(rig)
        assert all(message.ByteSize() <= MIB for message in found)
        assert sum(len(message.step.details) for message in found) == 12_000


async def test_refusals_of_long_handles_come_in_messages_up_to_1_mib():
    rig = SessionRig()
    for channel in range(1, 2001):
        rig.attach(channel, "\u00e9" * 512)
    found = await messages(rig)
    assert len(found) > 1
    assert all(message.ByteSize() <= MIB for message in found)
    assert sum(len(message.errors) for message in found) == 2000


async def test_attaches_and_ends_come_in_messages_up_to_1_mib():
    rig = SessionRig()
    for number in range(3000):
        rig.story(f"h{number}").end(FinishReason.ERROR, "é" * 200)
        rig.attach(number + 1, f"h{number}", window=0)
    found = await messages(rig)
    assert all(message.ByteSize() <= MIB for message in found)
    assert sum(len(message.attached) for message in found) == sum(len(message.ends) for message in found) == 3000


@pytest.mark.parametrize("codec", [ATTACHED, STATUS_CHANGE, WINDOW_STATE, MODEL_LOAD])
def test_every_fact_keeps_every_field(codec):
    kind = getattr(session_pb2, codec.message_name.rpartition(".")[2])
    for message in filled(kind):
        assert list(unset_fields(message)) == []
        assert codec.to_wire(codec.to_domain(message)) == message


def test_facts_stand_in_their_fields_and_others_are_unset():
    window, failure = WindowState(1, 2, 2, 9), HandleError(3, "h", 1, NotFound("gone"))
    message = session_response(SessionUpdate(windows=[window], errors=[failure], pong=0), "e1", "0011")
    assert {field.name for field, _ in message.ListFields()} == {"windows", "errors", "pong"}
    assert WINDOW_STATE.to_domain(message.windows[0]) == window
    (error,) = message.errors
    assert (error.channel, error.handle, error.index) == (3, "h", 1)
    assert (error.status.code, error.status.message) == (5, "gone")


async def test_the_fields_of_a_message_are_applied_in_order():
    """A channel may be attached and detached in one message; acks come after the attaches, the ping last."""
    rig = SessionRig()
    story = rig.story()
    story.say("a")
    message = SessionRequest(
        attach=[{"channel": 1, "handle": "h"}, {"channel": 2, "handle": "h", "from_position": 1, "window": 0}],
        detach=[1],
        acks=[{"channel": 2, "position": 1, "window": 5}],
        ping={"number": 7},
    )
    apply(message, rig.session)
    update = await rig.update()
    assert [(fact.channel, fact.position) for fact in update.attached] == [(2, 1)]
    assert (update.windows, update.pong) == ([], 7)
    assert story.readers == 1


async def test_a_window_of_0_is_one_and_none_is_the_default():
    rig = SessionRig()
    rig.story().say("a")
    attach = [{"channel": 1, "handle": "h", "window": 0}, {"channel": 2, "handle": "h"}]
    apply(SessionRequest(attach=attach), rig.session)
    update = await rig.update()
    assert update.rows.channels == [2]
    assert [window.channel for window in update.windows] == [1]
