"""Statuses and ends of a session's channels, and many channels at once."""

from __future__ import annotations

from itertools import chain

from headrace_engine.engine.sessions.session import CHANNELS_AT_ONCE, FACTS_AT_ONCE
from headrace_engine.engine.sessions.session_reader import WINDOW_INTERVAL
from headrace_engine.engine.sessions.session_update import (
    SequenceEnd,
    StatusChange,
)
from headrace_engine.result_types import FinishReason, GenerateStatus, PrefixReuse
from support.engine.session_rig import Row, SessionRig, facts


class TestStatus:
    async def test_changes_follow_the_tokens_and_stand_before_the_end(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        story.say("a")
        assert (await rig.update()).statuses == [StatusChange(1, GenerateStatus.CONTEXT_FINISHED, None)]
        story.say("b")
        assert (await rig.update()).statuses == [StatusChange(1, GenerateStatus.GENERATING, None)]
        story.say("c")
        end = story.end()
        assert [type(fact) for fact in facts(await rig.update())] == [Row, SequenceEnd]
        assert end.position == 3
        assert await rig.poll() is None

    async def test_that_was_passed_over_is_not_told(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        story.say("a", "b")
        assert (await rig.update()).statuses == [StatusChange(1, GenerateStatus.GENERATING, None)]

    async def test_that_the_end_passed_over_is_not_told(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        story.say("a")
        story.end()
        assert [type(fact) for fact in facts(await rig.update())] == [Row, SequenceEnd]

    async def test_comes_with_the_cache_use_once_that_is_known(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        story.log.contents.prefix = PrefixReuse(32)
        story.log.wake()
        assert (await rig.update()).statuses == [StatusChange(1, GenerateStatus.INIT, PrefixReuse(32))]

    async def test_cache_use_is_told_even_when_the_end_came_with_it(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        story.log.contents.prefix = PrefixReuse(32)
        story.say("a")
        story.end(FinishReason.MAX_LENGTH)
        update = await rig.update()
        assert [type(fact) for fact in facts(update)] == [Row, StatusChange, SequenceEnd]
        assert update.statuses == [StatusChange(1, GenerateStatus.CONTEXT_FINISHED, PrefixReuse(32))]


class TestEnd:
    async def test_of_all_is_once(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        end = story.end(text="rest")
        assert (await rig.update()).ends == [SequenceEnd(1, end)]
        story.log.wake()
        rig.ack(0)
        assert await rig.poll() is None

    async def test_release_ends_the_channels_with_not_found(self, rig: SessionRig) -> None:
        story, other = rig.story(), rig.story("other")
        rig.attach(1)
        rig.attach(2)
        rig.attach(3, "other")
        await rig.update()
        story.end()
        story.log.release()
        update = await rig.update()
        assert [(failure.channel, failure.handle) for failure in update.errors] == [(1, "h"), (2, "h")]
        assert all(failure.error.reason == "UNKNOWN_REQUEST" for failure in update.errors)
        assert (story.readers, other.readers) == (0, 1)
        assert await rig.poll() is None


class TestManyChannels:
    async def test_one_update_tells_of_so_many_facts(self, rig: SessionRig) -> None:
        """Others have a turn in between; every channel has its own."""
        rig.story().say("a")
        for number in range(1, 2 * FACTS_AT_ONCE + 2):
            rig.attach(number)
        reported = [[attached.channel for attached in (await rig.update()).attached] for _ in range(3)]
        assert [len(each) for each in reported] == [FACTS_AT_ONCE, FACTS_AT_ONCE, 1]
        assert sorted(chain.from_iterable(reported)) == list(range(1, 2 * FACTS_AT_ONCE + 2))
        assert await rig.poll() is None

    async def test_one_update_has_the_tokens_of_more_channels(self, rig: SessionRig) -> None:
        story = rig.story()
        for number in range(1, CHANNELS_AT_ONCE + 2):
            rig.attach(number)
        story.say("a")
        while rig.session._news:
            await rig.update()
        story.say("b")
        while rig.session._news:
            await rig.update()
        story.say("c")
        assert [len((await rig.update()).rows.channels) for _ in range(2)] == [CHANNELS_AT_ONCE, 1]

    async def test_many_without_news_hold_up_none_that_has_some(self, rig: SessionRig) -> None:
        """Acks mark their channels; one behind as many as are looked at together has tokens."""
        rig.story("quiet")
        rig.story().say("a")
        for number in range(1, CHANNELS_AT_ONCE + 1):
            rig.attach(number, "quiet")
        last = CHANNELS_AT_ONCE + 1
        rig.attach(last, window=0)
        while rig.session._news:
            await rig.update()
        for number in range(1, last):
            rig.ack(0, channel=number)
        rig.ack(0, 10, channel=last)
        rig.session.leave()
        update = await rig.session.next()
        assert update is not None
        assert update.rows.channels == [last]
        assert await rig.session.next() is None

    async def test_a_token_looks_at_no_channel_whose_window_is_shut(self, rig: SessionRig) -> None:
        """Its alarm tells how long the text is; what opens or ends it is told at once."""
        story = rig.story()
        for number in (1, 2, 3):
            rig.attach(number, window=0)
        await rig.update()
        story.say("a")
        await rig.update()
        story.say("b")
        await rig.update()
        story.say("c")
        assert await rig.poll() is None
        story.say("d")
        assert not rig.session._news
        rig.ack(0, 10, channel=2)
        assert (await rig.update()).rows.channels == [2]
        story.say("e")
        assert (await rig.update()).rows.channels == [2]
        rig.timers.advance(WINDOW_INTERVAL)
        assert [each.generated_length for each in (await rig.update()).windows] == [5, 5]
        story.say("f")
        await rig.update()
        story.end()
        assert sorted(end.channel for end in (await rig.update()).ends) == [1, 2, 3]
