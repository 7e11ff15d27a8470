"""Channels of a session: attaching, tokens, statuses and ends, each in its order."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.engine.sessions.session_update import (
    Attached,
    SequenceEnd,
)
from headrace_engine.errors import InvalidArgument, NotFound, OutOfRange
from headrace_engine.result_types import GenerateStatus
from headrace_proto.pure.limits import MAX_HANDLE_BYTES
from support.engine.session_rig import Row, SessionRig, rows_of, violated


class TestAttach:
    async def test_says_where_it_begins(self, rig: SessionRig) -> None:
        story = rig.story()
        story.say("a", "b", "c")
        rig.attach(5, at=2)
        first = await rig.update()
        (attached,) = first.attached
        before = story.log.checksum_before(2)
        assert attached == Attached(5, 2, before, GenerateStatus.GENERATING, 3, None)
        assert rows_of(first.rows) == [Row(5, 2, (9,), "c", story.log.checksum)]

    async def test_to_a_sequence_that_ended_tells_its_status_and_the_end(self, rig: SessionRig) -> None:
        story = rig.story()
        story.say("a")
        end = story.end()
        rig.attach()
        update = await rig.update()
        assert update.attached[0].status is GenerateStatus.FINISHED
        assert (update.ends, update.statuses, update.windows) == ([SequenceEnd(1, end)], [], [])
        assert await rig.poll() is None

    async def test_reads_the_sequence_that_it_names(self, rig: SessionRig) -> None:
        story = rig.story(sequences=2)
        story.logs[1].append(99, "second")
        rig.attach(index=1)
        assert rows_of((await rig.update()).rows)[0].ids == (99,)

    @pytest.mark.parametrize(
        ("wrong", "kind"),
        [
            ({"handle": "unknown"}, NotFound),
            ({"index": 1}, NotFound),
            ({"at": 3}, OutOfRange),
            ({"owner": "somebody else"}, NotFound),
        ],
    )
    async def test_an_impossible_one_is_reported_on_its_channel_alone(
        self, rig: SessionRig, wrong: dict[str, str], kind: type
    ) -> None:
        story = rig.story()
        story.say("a", "b")
        rig.attach(1, **wrong)  # type: ignore[arg-type]
        rig.attach(2)
        update = await rig.update()
        (failure,) = update.errors
        assert (failure.channel, failure.handle, failure.index) == (1, wrong.get("handle", "h"), wrong.get("index", 0))
        assert type(failure.error) is kind
        assert [row.channel for row in rows_of(update.rows)] == [2]
        rig.ack(1)  # The client did not know yet.
        assert story.readers == 1

    async def test_counts_as_a_reader_until_detached(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(1)
        rig.attach(2)
        assert story.readers == 2
        rig.session.detach(1)
        rig.session.detach(1)
        rig.session.detach(77)
        assert story.readers == 1
        story.say("a")
        assert [row.channel for row in rows_of((await rig.update()).rows)] == [2]

    @pytest.mark.parametrize("channel", [0, 7])
    async def test_with_0_or_a_number_used_before_breaks_the_rules(self, rig: SessionRig, channel: int) -> None:
        rig.story()
        rig.attach(7)
        rig.session.detach(7)
        with pytest.raises(InvalidArgument) as caught:
            rig.attach(channel)
        assert violated(caught) == ["attach[0].channel"]

    async def test_beyond_the_sessions_channels_it_breaks_the_rules(
        self, rig: SessionRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Failed ones count until they are told, or a client that never listens would fill the memory."""
        monkeypatch.setattr("headrace_engine.engine.sessions.session_channels.MAX_CHANNELS", 3)
        rig.story()
        rig.attach(1)
        rig.attach(2, "unknown")
        rig.attach(3, "unknown")
        with pytest.raises(InvalidArgument) as caught:
            rig.attach(4)
        assert violated(caught) == ["attach[0]"]
        await rig.update()
        rig.attach(5)

    async def test_with_what_cannot_be_a_handle_breaks_the_rules(self, rig: SessionRig) -> None:
        """It would have to come back in the refusal, and messages are bounded."""
        rig.attach(1, "é" * (MAX_HANDLE_BYTES // 2))
        with pytest.raises(InvalidArgument) as caught:
            rig.attach(2, "é" * (MAX_HANDLE_BYTES // 2 + 1))
        assert violated(caught) == ["attach[0].handle"]


class TestTokens:
    async def test_of_a_step_are_told_together(self, rig: SessionRig) -> None:
        stories = [rig.story(f"h{number}") for number in range(20)]
        for number in range(20):
            rig.attach(number + 1, f"h{number}")
        await rig.update()
        waiting = asyncio.create_task(rig.session.next())
        await asyncio.sleep(0)
        for story in stories:
            story.say("x")
        update = await waiting
        assert update is not None
        assert [row.channel for row in rows_of(update.rows)] == list(range(1, 21))
        assert await rig.poll() is None

    async def test_that_came_while_nobody_fetched_are_one_row(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        for text in "abc":
            story.say(text)
        (row,) = rows_of((await rig.update()).rows)
        assert (row.position, row.ids, row.text) == (0, (7, 8, 9), "abc")

    async def test_carry_logprobs_where_the_config_asked(self, rig: SessionRig) -> None:
        story = rig.story(with_logprobs=True)
        other = rig.story("other")
        rig.attach(1, "other")
        rig.attach(2)
        other.say("x")
        story.say("a", "b", logprob=-0.5)
        plain, asked = rows_of((await rig.update()).rows)
        assert plain.logprobs is None
        assert asked.logprobs is not None
        assert asked.logprobs == [-0.5, -0.5]

    async def test_that_do_not_fit_follow_later_and_others_go_first(self) -> None:
        rig = SessionRig(update_bytes=4000)
        long, short = rig.story("long"), rig.story("short")
        rig.attach(1, "long")
        rig.attach(2, "short")
        await rig.update()
        long.say(*["é" * 50] * 100)
        short.say("s")
        channels, length = [], 0
        while (update := await rig.poll()) is not None:
            channels.append([row.channel for row in rows_of(update.rows)])
            text = "".join(row.text for row in rows_of(update.rows))
            length += text.count("é")
            assert len(text.encode()) <= 4000
        assert channels[0] == [1]
        assert channels[1] == [2, 1]
        assert length == 5000

    async def test_larger_than_an_update_go_alone(self) -> None:
        rig = SessionRig(update_bytes=1000)
        story = rig.story()
        rig.attach()
        await rig.update()
        story.say("small", "x" * 3000, "small")
        found = []
        while (update := await rig.poll()) is not None:
            found.append([row.ids for row in rows_of(update.rows)])
        assert found == [[(7,)], [(8,)], [(9,)]]
