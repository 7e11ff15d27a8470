"""Alarms ring once for each item, in time, and hold on to nothing."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.engine.requests.timer_queue import Alarms
from support.clocks.clock import FakeClock
from support.clocks.timers import FakeTimers


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


def ringing(clock: FakeClock) -> tuple[Alarms[str], list[str]]:
    rung: list[str] = []
    return Alarms(clock, lambda item, now: rung.append(item)), rung


async def test_items_ring_in_the_order_of_their_times_and_once(clock: FakeClock) -> None:
    alarms, rung = ringing(clock)
    for key, (due, item) in enumerate([(1003, "c"), (1001, "a"), (1002, "b"), (1009, "z")]):
        alarms.set(key, due, item)
    clock.advance(3)
    alarms.sweep()
    alarms.sweep()
    assert rung == ["a", "b", "c"]
    assert len(alarms) == 1
    alarms.close()


async def test_an_item_rings_at_the_earlier_of_two_times(clock: FakeClock) -> None:
    alarms, rung = ringing(clock)
    for due in (1005, 1002, 1004):
        alarms.set(1, due, f"at {due}")
    clock.advance(10)
    alarms.sweep()
    assert rung == ["at 1002"]
    alarms.close()


async def test_a_dropped_item_rings_no_more_and_may_be_set_again(clock: FakeClock) -> None:
    alarms, rung = ringing(clock)
    alarms.set(1, 1001, "dropped")
    alarms.drop(1)
    alarms.drop(2)
    alarms.set(1, 1002, "new")
    clock.advance(5)
    alarms.sweep()
    assert rung == ["new"]
    alarms.close()


async def test_items_gone_long_before_their_time_leave_nothing(clock: FakeClock) -> None:
    alarms, _ = ringing(clock)
    for key in range(10_000):
        alarms.set(key, 1e9 + key, "far")
        alarms.drop(key)
    assert len(alarms._heap) <= 65
    alarms.close()


async def test_an_item_set_while_it_rings_rings_again(clock: FakeClock) -> None:
    rung: list[float] = []

    def again(item: str, now: float) -> None:
        rung.append(now)
        alarms.set(1, now + 1, item)

    alarms = Alarms(clock, again)
    alarms.set(1, 1001, "x")
    for _ in range(3):
        clock.advance(1)
        alarms.sweep()
    assert rung == [1001, 1002, 1003]
    alarms.close()


def test_the_timer_follows_a_clock_that_was_set(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """Far times are looked at every second, so that a clock set forward rings at once."""
    timers = FakeTimers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    alarms, rung = ringing(clock)
    alarms.set(1, 1500, "x")
    timers.advance(1)
    assert (rung, timers.armed) == ([], 1)
    clock.advance(500)
    timers.advance(1)
    assert (rung, timers.armed) == (["x"], 0)


def test_a_closed_one_arms_no_timer(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    timers = FakeTimers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    alarms, rung = ringing(clock)
    alarms.set(1, 1001, "x")
    alarms.close()
    alarms.set(2, 1001, "y")
    clock.advance(5)
    timers.advance(5)
    assert (rung, timers.armed) == ([], 0)
