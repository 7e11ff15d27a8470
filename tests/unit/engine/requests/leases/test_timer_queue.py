"""Items fall due once each, in time, and hold on to nothing."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.engine.requests.timer_queue import TimerQueue
from support.clocks.clock import FakeClock
from support.clocks.timers import FakeTimers


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


def ringing(clock: FakeClock) -> tuple[TimerQueue[str], list[str]]:
    rung: list[str] = []
    return TimerQueue(clock, lambda item, now: rung.append(item)), rung


async def test_items_ring_in_the_order_of_their_times_and_once(clock: FakeClock) -> None:
    queue, rung = ringing(clock)
    for key, (due, item) in enumerate([(1003, "c"), (1001, "a"), (1002, "b"), (1009, "z")]):
        queue.set(key, due, item)
    clock.advance(3)
    queue.sweep()
    queue.sweep()
    assert rung == ["a", "b", "c"]
    assert len(queue) == 1
    queue.close()


async def test_an_item_rings_at_the_earlier_of_two_times(clock: FakeClock) -> None:
    queue, rung = ringing(clock)
    for due in (1005, 1002, 1004):
        queue.set(1, due, f"at {due}")
    clock.advance(10)
    queue.sweep()
    assert rung == ["at 1002"]
    queue.close()


async def test_a_dropped_item_rings_no_more_and_may_be_set_again(clock: FakeClock) -> None:
    queue, rung = ringing(clock)
    queue.set(1, 1001, "dropped")
    queue.drop(1)
    queue.drop(2)
    queue.set(1, 1002, "new")
    clock.advance(5)
    queue.sweep()
    assert rung == ["new"]
    queue.close()


async def test_items_gone_long_before_their_time_leave_nothing(clock: FakeClock) -> None:
    queue, _ = ringing(clock)
    for key in range(10_000):
        queue.set(key, 1e9 + key, "far")
        queue.drop(key)
    assert len(queue._heap) <= 65
    queue.close()


async def test_an_item_set_while_it_rings_rings_again(clock: FakeClock) -> None:
    rung: list[float] = []

    def again(item: str, now: float) -> None:
        rung.append(now)
        queue.set(1, now + 1, item)

    queue = TimerQueue(clock, again)
    queue.set(1, 1001, "x")
    for _ in range(3):
        clock.advance(1)
        queue.sweep()
    assert rung == [1001, 1002, 1003]
    queue.close()


def test_the_timer_follows_a_clock_that_was_set(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """Far times are looked at every second, so that a clock set forward rings at once."""
    timers = FakeTimers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    queue, rung = ringing(clock)
    queue.set(1, 1500, "x")
    timers.advance(1)
    assert (rung, timers.armed) == ([], 1)
    clock.advance(500)
    timers.advance(1)
    assert (rung, timers.armed) == (["x"], 0)


def test_a_closed_one_arms_no_timer(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    timers = FakeTimers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    queue, rung = ringing(clock)
    queue.set(1, 1001, "x")
    queue.close()
    queue.set(2, 1001, "y")
    clock.advance(5)
    timers.advance(5)
    assert (rung, timers.armed) == ([], 0)
