"""How a session begins, is kept alive and ends, and the load that it reports."""

from __future__ import annotations

import pytest
from headrace_engine.engine.sessions.session_news import LOAD_INTERVAL
from headrace_engine.engine.sessions.session_update import (
    Attached,
    ModelLoad,
    SequenceEnd,
)
from headrace_engine.errors import InvalidArgument, Unavailable
from headrace_engine.model_types import ModelState
from headrace_engine.result_types import FinishReason
from headrace_proto.pure.limits import LEAVE_SECONDS, PING_TIMEOUT
from support.engine.session_rig import Row, SessionRig, facts, rows_of


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
        rig.timers.advance(LEAVE_SECONDS)
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
