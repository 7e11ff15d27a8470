"""Bounds how often servers log what any caller can cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

BURST = 100
"""Lines of one kind that may follow one another at once."""

PER_SECOND = 10.0
"""Lines of one kind a second, after a burst."""


class LogBudget:
    """How many lines of each kind may be logged, so that no caller fills a disk or hides what others do.

    Args:
        clock: seconds since some fixed moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}

    def spend(self, kind: Hashable) -> int | None:
        """Take one line of a kind, of which there are few.

        Returns:
            How many lines of this kind were left out since the last one; None: leave out this one too.
        """
        now = self._clock()
        return self._kinds.setdefault(kind, _Kind(now)).spend(now)


class _Kind:
    def __init__(self, now: float) -> None:
        self._left, self._time, self._omitted = float(BURST), now, 0

    def spend(self, now: float) -> int | None:
        self._left = min(BURST, self._left + (now - self._time) * PER_SECOND)
        self._time = now
        if self._left < 1.0:
            self._omitted += 1
            return None
        self._left -= 1.0
        omitted, self._omitted = self._omitted, 0
        return omitted
