"""How loaded engines are: what they tell by themselves, what polls find, and what was placed since."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from headrace_gateway.engines.load import REPORT_SECONDS, TRAVEL_SECONDS, EngineLoad
from headrace_proto.v1.session_pb2 import ModelLoad
from support.clocks.waiting import ends
from support.scripted.engine_answers import RELEASED, RUNNING, STOPPED, refuse
from unit.gateway.conftest import QUICK, until
from unit.gateway.placing import all_placed


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def load(clock):
    return EngineLoad(clock)


def report(load, name="smol", **figures):
    return load.update([ModelLoad(model_name=name, **{"state": RUNNING, **figures})])


def place(load):
    with load.placing():
        pass


class TestCounting:
    def test_figures_of_all_models_add_up_without_released_ones(self, load):
        report(load, running=3, waiting=2)
        report(load, "other", running=1)
        assert load.requests == 6
        report(load, state=RELEASED)
        assert load.requests == 1

    def test_a_request_counts_while_starting_and_not_if_refused(self, load):
        with pytest.raises(ZeroDivisionError), load.placing():
            assert load.requests == 1
            raise ZeroDivisionError
        assert load.requests == 0

    def test_arriving_figures_count_what_was_placed_before_them(self, load, clock):
        report(load)
        place(load)
        clock.now += TRAVEL_SECONDS
        report(load, running=1)
        assert load.requests == 1

    def test_placements_after_the_figures_were_taken_are_added(self, load, clock):
        report(load)
        place(load)
        clock.now += TRAVEL_SECONDS / 2
        report(load, running=0)
        assert load.requests == 1

    def test_a_request_between_two_polls_is_forgotten(self, load, clock):
        report(load)
        place(load)
        clock.now += REPORT_SECONDS
        assert load.requests == 0

    def test_without_pushed_figures_only_a_poll_forgets(self, load, clock):
        place(load)
        clock.now += 10 * REPORT_SECONDS
        assert load.requests == 1
        load.counted(clock.now)
        load.polled(7)
        assert load.requests == 7

    def test_the_last_figures_hold_until_a_poll(self, load):
        report(load, running=4)
        load.polled(9)
        load.lost()
        assert load.requests == 4
        load.polled(2)
        assert load.requests == 2

    def test_state_core_and_readiness_are_news_and_figures_are_not(self, load):
        assert report(load, core_epoch=1)
        assert not report(load, core_epoch=1, running=9)
        assert report(load, core_epoch=2)
        assert report(load, core_epoch=2, draining=True)
        assert report(load, state=STOPPED, core_epoch=2, draining=True)


@pytest.fixture
async def front(world, first, second, clock):
    """Polls only when it has cause to, so that what it knows beyond that comes from the sessions.

    Time stands still, and lies ahead of that of polls, however slow the machine: what was placed counts until a test
    moves the clock.
    """
    clock.now = time.monotonic() + 1e6
    front = await world.gateway(e1=first, e2=second, limits=QUICK)
    for engine in (first, second):
        await until(engine, lambda engine=engine: engine.sessions and engine.side.wants_load)
    for name in ("e1", "e2"):
        front.gateway.pool.named(name).load._now = clock
    return front


async def known(front, name, requests):
    """Returns once the engine has told that many requests."""
    load = front.gateway.pool.named(name).load
    heard, report = asyncio.Event(), load.update

    def updating(loads):
        heard.set()
        return report(loads)

    load.update = updating
    async with ends(f"{name} does not tell of {requests} requests"):
        while load.requests != requests or not load.followed:
            heard.clear()
            await heard.wait()
    load.update = report


class TestSessions:
    """The stream to each engine stands whether or not someone reads, and brings its load."""

    async def test_requests_go_where_engines_report_less_to_do(self, front, first, second):
        first.send_load(running=2)
        second.send_load(running=4)
        await known(front, "e1", 2)
        await known(front, "e2", 4)
        assert Counter(await all_placed(front, 2)) == {"e1": 2}
        first.send_load(running=9)
        await known(front, "e1", 11)
        assert await all_placed(front, 3) == ["e2"] * 3

    async def test_t2_figures_that_travel_slowly_count_what_was_placed(self, front, first, second, clock):
        """On a slow machine what was placed is in the figures that follow."""
        first.send_load(running=2)
        second.send_load(running=4)
        await known(front, "e1", 2)
        await known(front, "e2", 4)
        assert Counter(await all_placed(front, 2)) == {"e1": 2}
        clock.now += TRAVEL_SECONDS
        first.send_load(running=9)
        await known(front, "e1", 9)
        assert await all_placed(front, 3) == ["e2"] * 3

    async def test_an_engine_that_tells_its_load_is_not_asked_for_it(self, front, first):
        first.send_load(running=2)
        await known(front, "e1", 2)
        asked = len(first.asked("GetEngineStat"))
        await front.gateway.pool.refresh()
        assert len(first.asked("GetEngineStat")) == asked

    async def test_a_model_that_stopped_is_known_at_once(self, front, first):
        first.send_load()
        await known(front, "e1", 0)
        first.models["smol"] = STOPPED
        first.send_load(state=STOPPED)
        await front.until(lambda: not front.gateway.pool.named("e1").view.runs("smol"))
        assert await all_placed(front, 2) == ["e2"] * 2

    async def test_after_a_broken_stream_polls_ask_until_another_reports(self, front, first):
        async def refusing(requests, context):
            await refuse(context, 14, "DRAINING")

        first.send_load(running=2)
        await known(front, "e1", 2)
        engine = front.gateway.pool.named("e1")
        first.script["Session"] = refusing
        tries = len(first.asked("Session"))
        first.end_sessions()
        await until(first, lambda: len(first.asked("Session")) > tries)
        first.running = 5
        await engine.refresh()
        assert (engine.load.followed, engine.load.requests) == (False, 5)
        del first.script["Session"]
        opened = len(first.sessions)
        await until(first, lambda: len(first.sessions) > opened and first.side.wants_load)
        first.send_load(running=8)
        await known(front, "e1", 8)
