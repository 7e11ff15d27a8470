"""Windows of a session: what they hold back, and what is said of them."""

from __future__ import annotations

import pytest
from headrace_engine.engine.sessions.session_update import (
    SequenceEnd,
    StatusChange,
    WindowState,
)
from headrace_engine.errors import InvalidArgument
from headrace_engine.result_types import GenerateStatus
from support.engine.session_rig import SessionRig, facts, rows_of, violated


class TestWindow:
    async def test_holds_tokens_back_until_an_ack(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=2)
        await rig.update()
        story.say("a", "b", "c")
        update = await rig.update()
        assert rows_of(update.rows)[0].text == "ab"
        assert update.windows == [WindowState(1, 2, 2, 3)]
        assert await rig.poll() is None
        rig.ack(1)
        update = await rig.update()
        assert (rows_of(update.rows)[0].text, update.windows) == ("c", [WindowState(1, 3, 3, 3)])

    async def test_default_is_4096_tokens(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        story.say(*["x"] * 5000)
        update = await rig.update()
        assert update.rows.counts == [4096]
        assert update.windows == [WindowState(1, 4096, 4096, 5000)]

    async def test_of_0_lets_statuses_and_the_end_through(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=0)
        assert (await rig.update()).windows == [WindowState(1, 0, 0, 0)]
        story.say("a")
        assert facts(await rig.update()) == [StatusChange(1, GenerateStatus.CONTEXT_FINISHED, None)]
        story.say("b")
        end = story.end()
        assert facts(await rig.update()) == [SequenceEnd(1, end)]

    async def test_closed_is_reported_once_a_second_while_tokens_come(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=1)
        story.say("a", "b")
        assert (await rig.update()).windows == [WindowState(1, 1, 1, 2)]
        for _ in range(5):
            story.say("c")
            rig.timers.advance(0.19)
            assert await rig.poll() is None
        rig.timers.advance(0.05)
        assert (await rig.update()).windows == [WindowState(1, 1, 1, 7)]
        rig.timers.advance(5)
        assert await rig.poll() is None, "nothing came since"
        story.say("d")
        assert (await rig.update()).windows == [WindowState(1, 1, 1, 8)]

    async def test_that_was_acknowledged_as_0_opens_as_it_was(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=3)
        story.say("a")
        await rig.update()
        rig.ack(1, 0)
        story.say("b", "c")
        update = await rig.update()
        assert (update.rows.channels, update.windows) == ([], [WindowState(1, 1, 1, 3)])
        rig.ack(1)
        assert rows_of((await rig.update()).rows)[0].text == "bc"

    async def test_that_shrinks_takes_nothing_back(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=10)
        story.say("a", "b", "c")
        await rig.update()
        rig.ack(1, 1)
        story.say("d")
        assert (await rig.update()).windows == [WindowState(1, 3, 3, 4)]
        rig.ack(3)
        assert rows_of((await rig.update()).rows)[0].text == "d"

    async def test_with_nothing_left_behind_it_is_no_news(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=2)
        story.say("a", "b")
        story.end()
        assert (await rig.update()).windows == []

    @pytest.mark.parametrize("position", [0, 3])
    async def test_acks_that_go_back_or_ahead_break_the_rules(self, rig: SessionRig, position: int) -> None:
        story = rig.story()
        rig.attach()
        story.say("a", "b")
        await rig.update()
        rig.ack(1)
        with pytest.raises(InvalidArgument) as caught:
            rig.ack(position)
        assert violated(caught) == ["acks[0].position"]

    async def test_of_an_unknown_channel_is_let_pass(self, rig: SessionRig) -> None:
        rig.ack(7, channel=9)
        assert await rig.poll() is None
