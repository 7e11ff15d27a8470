"""An event loop's clock and timers, moved by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class FakeTimers:
    """Time stands still until `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, Alarm]] = []
        self._order = count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(callback)
        heapq.heappush(self._heap, (self.now + delay, next(self._order), alarm))
        return alarm

    def advance(self, seconds: float) -> None:
        """Move time, and run due timers."""
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, alarm = heapq.heappop(self._heap)
            if not alarm.cancelled:
                alarm.callback()
        self.now = until

    @property
    def armed(self) -> int:
        """Number of timers that are still to fire."""
        return sum(not alarm.cancelled for _, _, alarm in self._heap)


class Alarm:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
