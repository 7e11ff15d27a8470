"""A timer queue."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace_engine.engine.results.statistics import Clock

Item = TypeVar("Item")

_SHORTEST_LOOK = 0.02
_LONGEST_LOOK = 1.0
"""Minimum and maximum seconds between checks; bounded above since the clock may be set."""


class TimerQueue(Generic[Item]):
    """Items with the times at which they are due; one entry per key.

    Args:
        on_due: called with a due item and the current time, after its removal: it may set the item again.
    """

    def __init__(self, clock: Clock, on_due: Callable[[Item, float], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._heap: list[tuple[float, int]] = []
        self._due: dict[int, tuple[float, Item]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: int, due: float, item: Item) -> None:
        """Schedule an item, unless it is due earlier already."""
        known = self._due.get(key)
        if known is not None and known[0] <= due:
            return
        self._due[key] = due, item
        heapq.heappush(self._heap, (due, key))
        if self._heap[0] == (due, key):
            self._arm()

    def drop(self, key: int) -> None:
        """Remove an item, and the reference to it."""
        self._due.pop(key, None)
        if len(self._heap) > 2 * len(self._due) + 64:  # Most entries are stale: times of removed items.
            self._heap = [(due, key) for key, (due, _) in self._due.items()]
            heapq.heapify(self._heap)

    def sweep(self) -> None:
        """Call on_due with every due item."""
        now = self._clock()
        for item in self._take(now):
            self._on_due(item, now)
        self._arm()

    def close(self) -> None:
        """Stop the timer: no item becomes due any more."""
        self._closed = True
        self._disarm()

    def _take(self, now: float) -> list[Item]:
        taken = []
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            known = self._due.get(key)
            if known is not None and known[0] == due:
                del self._due[key]
                taken.append(known[1])
        return taken

    def _arm(self) -> None:
        self._disarm()
        if self._heap and not self._closed:
            delay = min(max(self._heap[0][0] - self._clock(), _SHORTEST_LOOK), _LONGEST_LOOK)
            self._timer = asyncio.get_running_loop().call_later(delay, self.sweep)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
