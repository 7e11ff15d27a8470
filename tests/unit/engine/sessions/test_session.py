"""A session of the engine: what is told when, channel by channel."""

from __future__ import annotations

import asyncio
import math

import pytest
from headrace_engine.engine.sessions.session import LEAVE_TIME, LOAD_INTERVAL, PING_TIMEOUT
from headrace_engine.engine.sessions.session_channels import MAX_HANDLE_BYTES, ChannelNumbers
from headrace_engine.engine.sessions.session_update import (
    Attached,
    ModelLoad,
    SequenceEnd,
    SessionUpdate,
    StatusChange,
    WindowState,
)
from headrace_engine.errors import InvalidArgument, NotFound, OutOfRange, Unavailable
from headrace_engine.model_types import ModelState
from headrace_engine.result_types import FinishReason, GenerateStatus, PrefixReuse
from support.engine.session_rig import Row, SessionRig, rows_of


@pytest.fixture
async def rig() -> SessionRig:
    return SessionRig()


def facts(update: SessionUpdate) -> list[object]:
    """Everything in an update, in its order."""
    own = [("opened",)] if update.opened else []
    rows = rows_of(update.rows)
    return [*own, *update.attached, *rows, *update.statuses, *update.ends, *update.errors, *update.windows]


def violated(caught: pytest.ExceptionInfo[InvalidArgument]) -> list[str]:
    return [violation.field for violation in caught.value.violations]


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
        story.log.prefix = PrefixReuse(32)
        story.log.wake()
        assert (await rig.update()).statuses == [StatusChange(1, GenerateStatus.INIT, PrefixReuse(32))]

    async def test_cache_use_is_told_even_when_the_end_came_with_it(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        await rig.update()
        story.log.prefix = PrefixReuse(32)
        story.say("a")
        story.end(FinishReason.MAX_LENGTH)
        update = await rig.update()
        assert [type(fact) for fact in facts(update)] == [Row, StatusChange, SequenceEnd]
        assert update.statuses == [StatusChange(1, GenerateStatus.CONTEXT_FINISHED, PrefixReuse(32))]


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


class TestLife:
    async def test_opening_is_told_first(self, rig: SessionRig) -> None:
        rig.session.open(load=False)
        assert facts(await rig.update()) == [("opened",)]
        assert await rig.poll() is None

    async def test_a_ping_is_answered_at_once_whatever_waits(self) -> None:
        rig = SessionRig(update_bytes=500)
        rig.story().say(*["x" * 100] * 50)
        rig.attach()
        await rig.update()
        rig.session.ping(3)
        rig.session.ping(4)
        update = await rig.update()
        assert (update.pong, update.rows.channels) == (4, [1])
        assert (await rig.update()).pong is None

    async def test_silence_ends_it(self, rig: SessionRig) -> None:
        rig.timers.advance(PING_TIMEOUT - 1)
        rig.session.heard()
        rig.timers.advance(PING_TIMEOUT - 1)
        assert await rig.poll() is None
        rig.timers.advance(1)
        with pytest.raises(Unavailable, match="no message came for 30 s") as caught:
            await rig.poll()
        assert caught.value.reason == "SESSION_SILENT"

    async def test_a_leaving_client_gets_what_is_there_and_then_nothing(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach()
        rig.session.leave()
        assert story.readers == 0
        story.say("a")
        update = await rig.session.next()
        assert update is not None
        assert [type(fact) for fact in facts(update)][:2] == [Attached, Row]
        story.say("b")
        assert await rig.session.next() is None

    async def test_a_failure_is_raised_whatever_waits(self, rig: SessionRig) -> None:
        rig.story().say("a")
        rig.attach()
        rig.session.fail(InvalidArgument("first"))
        rig.session.fail(InvalidArgument("second"))
        with pytest.raises(InvalidArgument, match="first"):
            await rig.session.next()

    async def test_an_engine_that_goes_away_tells_everything_first(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=1)
        story.say("a", "b")
        await rig.update()
        end = story.end(FinishReason.DRAINED)
        rig.session.drain()
        assert (await rig.update()).ends == [SequenceEnd(1, end)]
        assert await rig.poll() is None, "a token waits for its window"
        rig.ack(1)
        last = await rig.update()
        assert (rows_of(last.rows)[0].text, last.closing) == ("b", True)
        assert await rig.poll() is None, "the client may not have read that yet"
        rig.session.leave()
        with pytest.raises(Unavailable) as caught:
            await rig.session.next()
        assert caught.value.reason == "DRAINING"

    async def test_attaches_during_a_drain_are_still_served(self, rig: SessionRig) -> None:
        story = rig.story()
        story.say("a")
        story.end(FinishReason.DRAINED)
        rig.session.drain()
        assert (await rig.update()).closing
        rig.attach()
        assert rows_of((await rig.update()).rows)[0].text == "a"

    async def test_a_draining_engine_waits_for_its_client_for_a_time(self, rig: SessionRig) -> None:
        rig.session.drain()
        assert (await rig.update()).closing
        rig.timers.advance(LEAVE_TIME)
        with pytest.raises(Unavailable) as caught:
            await rig.poll()
        assert caught.value.reason == "DRAINING"

    async def test_a_client_that_has_left_is_not_told_that_the_engine_goes(self, rig: SessionRig) -> None:
        rig.session.leave()
        rig.session.drain()
        assert await rig.session.next() is None

    async def test_closing_gives_everything_back(self, rig: SessionRig) -> None:
        story = rig.story()
        rig.attach(window=1)
        rig.session.open(load=True)
        story.say("a", "b")
        await rig.update()
        story.say("c")
        await rig.poll()
        assert rig.timers.armed == 3, "silence, load, and the window that is closed"
        rig.session.close()
        assert (rig.timers.armed, story.readers, rig.closed) == (0, 0, 1)


class TestLoad:
    LOAD = ModelLoad("smol", ModelState.RUNNING, running=2)

    async def test_is_told_only_to_those_who_asked(self, rig: SessionRig) -> None:
        rig.loads = [self.LOAD]
        rig.session.open(load=False)
        assert (await rig.update()).loads == []
        rig.timers.advance(1)
        assert await rig.poll() is None

    async def test_is_sent_first_and_on_change_ten_times_a_second(self, rig: SessionRig) -> None:
        rig.loads = [self.LOAD]
        rig.session.open(load=True)
        assert (await rig.update()).loads == [self.LOAD]
        rig.timers.advance(LOAD_INTERVAL * 4.5)
        assert await rig.poll() is None
        rig.loads = [ModelLoad("smol", ModelState.RUNNING, running=3)]
        rig.timers.advance(LOAD_INTERVAL * 0.4)
        assert await rig.poll() is None
        rig.timers.advance(LOAD_INTERVAL * 0.2)
        assert (await rig.update()).loads == rig.loads

    async def test_of_a_session_that_fetches_slowly_is_the_newest(self, rig: SessionRig) -> None:
        rig.session.open(load=True)
        for running in range(9):
            rig.loads = [ModelLoad("smol", ModelState.RUNNING, running=running)]
            rig.timers.advance(LOAD_INTERVAL + 0.001)
        assert [load.running for load in (await rig.update()).loads] == [8]

    async def test_a_model_that_is_gone_is_released(self, rig: SessionRig) -> None:
        rig.loads = [self.LOAD]
        rig.session.open(load=True)
        await rig.update()
        rig.loads = []
        rig.timers.advance(LOAD_INTERVAL * 1.5)
        assert (await rig.update()).loads == [ModelLoad("smol", ModelState.RELEASED)]


def test_channel_numbers_in_order_take_a_bit_each() -> None:
    numbers = ChannelNumbers()
    assert all(numbers.take(number) for number in range(1, 50_000))
    assert not any(numbers.take(number) for number in (1, 1023, 1024, 49_999))
    assert len(numbers._pages) == math.ceil(50_000 / 1024)
