"""Time for tests, which passes when a test moves it or waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from support.clocks.waiting import LIMIT

LONGEST_PAUSE = 5.0  # seconds; longer waits are for news


class FakeClock:
    """Time that stands still until a test moves it.

    The owner, the thread that made it, moves it by waiting: its own pauses end at once. The pauses of other threads
    last until `step` or `advance` passes their end, or are short after `run`. Waits above LONGEST_PAUSE are not pauses:
    they end with a notification or by `advance`. `when_owner_waits` is called first whenever the owner waits.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._runs = False
        self.when_owner_waits: Callable[[], None] = lambda: None
        self._owner = threading.current_thread()
        self._waits: dict[int, tuple[float, threading.Condition]] = {}
        self._pausing: set[int] = set()
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        """Return the time in seconds."""
        with self._changed:
            return self.now

    def sleep(self, seconds: float) -> None:
        """Pause; for the owner, move time and return at once."""
        self.slept.append(seconds)
        self.advance(seconds)

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait for a notification; for the owner, time passes instead."""
        owner = threading.current_thread() is self._owner
        if owner:
            self.when_owner_waits()
        if seconds is None:
            condition.wait()
        elif owner:
            self.advance(seconds)
        else:
            self._wait_in_background(condition, seconds)

    def advance(self, seconds: float) -> None:
        """Move time, and wake the waits that are due."""
        with self._changed:
            self.now += seconds
            due = [condition for end, condition in self._waits.values() if end <= self.now]
            self._waits = {key: wait for key, wait in self._waits.items() if wait[0] > self.now}
        for condition in due:
            with condition:
                condition.notify_all()

    def step(self) -> None:
        """Wait until another thread pauses, and move time to the end of its pause."""
        with self._changed:
            assert self._changed.wait_for(self._pauses, LIMIT), "no thread pauses"
            seconds = max(0.0, min(self._pauses()) - self.now)
        self.advance(seconds)

    def run(self) -> None:
        """From now on, let time pass by itself whenever a thread pauses."""
        with self._changed:
            self._runs = True
            most = max(self._pauses(), default=self.now)
        self.advance(most - self.now)

    def _pauses(self) -> list[float]:
        """Return the ends of the pauses in progress."""
        return [end for key, (end, _) in self._waits.items() if key in self._pausing]

    def _wait_in_background(self, condition: threading.Condition, seconds: float) -> None:
        key, pauses = threading.get_ident(), seconds <= LONGEST_PAUSE
        with self._changed:
            runs = self._runs and pauses
            if not runs:
                self._waits[key] = (self.now + seconds, condition)
                if pauses:
                    self._pausing.add(key)
                self._changed.notify_all()
        notified = condition.wait(0.01 if runs else None)
        if not notified:
            self.advance(seconds)
        with self._changed:
            self._waits.pop(key, None)
            self._pausing.discard(key)
