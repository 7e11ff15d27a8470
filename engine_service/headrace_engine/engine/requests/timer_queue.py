"""Looking at things when their time has come."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace_engine.engine.results.statistics import Clock

Item = TypeVar("Item")

_SHORTEST_LOOK = 0.02
_LONGEST_LOOK = 1.0
"""Seconds between two looks at least and at most: the clock may be set meanwhile."""


class Alarms(Generic[Item]):
    """Keeps items with the times at which they are due, each once, and rings for those whose time has come.

    Args:
        ring: called with an item that is due; it is kept no more, and may be set anew.
    """

    def __init__(self, clock: Clock, ring: Callable[[Item, float], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._heap: list[tuple[float, int]] = []
        self._due: dict[int, tuple[float, Item]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: int, due: float, item: Item) -> None:
        """Ring for an item at a time, if it is not to ring earlier already."""
        known = self._due.get(key)
        if known is not None and known[0] <= due:
            return
        self._due[key] = due, item
        heapq.heappush(self._heap, (due, key))
        if self._heap[0] == (due, key):
            self._arm()

    def drop(self, key: int) -> None:
        """Do not ring for this item, and let it be freed."""
        self._due.pop(key, None)
        if len(self._heap) > 2 * len(self._due) + 64:  # Far times of items that are long gone.
            self._heap = [(due, key) for key, (due, _) in self._due.items()]
            heapq.heapify(self._heap)

    def sweep(self) -> None:
        """Ring for everything that is due."""
        now = self._clock()
        for item in self._take(now):
            self._ring(item, now)
        self._arm()

    def close(self) -> None:
        """Ring no more."""
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
