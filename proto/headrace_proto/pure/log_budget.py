"""Bounds how often servers log events that any caller can cause."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

BURST = 100
"""Maximum lines of one kind in a burst."""

PER_SECOND = 10.0
"""Lines of one kind per second, after a burst."""

REPEAT_SECONDS = 60.0
"""Seconds between lines of one kind about the same subject: callers may retry every second."""

REMEMBERED = 1024
"""Number of recent subjects remembered; older ones may be logged again sooner."""


class LogBudget:
    """Limits the log lines of each kind, so that no caller can fill a disk or drown other lines.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}
        self._told: OrderedDict[Hashable, float] = OrderedDict()

    def spend(self, kind: Hashable, about: str = "") -> int | None:
        """Take one line of a kind from the budget.

        Args:
            about: subject of the line, such as a handle; "": none.

        Returns:
            Number of lines of this kind left out since the last one; None: leave out this one too.
        """
        now = self._clock()
        budget = self._kinds.setdefault(kind, _Kind(now))
        if about and now - self._told.get((kind, about), -math.inf) < REPEAT_SECONDS:
            budget.leave_out()
            return None
        omitted = budget.spend(now)
        if about and omitted is not None:
            self._remember((kind, about), now)
        return omitted

    def _remember(self, what: Hashable, now: float) -> None:
        self._told[what] = now
        self._told.move_to_end(what)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)


class _Kind:
    def __init__(self, now: float) -> None:
        self._left, self._time, self._omitted = float(BURST), now, 0

    def spend(self, now: float) -> int | None:
        self._left = min(BURST, self._left + (now - self._time) * PER_SECOND)
        self._time = now
        if self._left < 1.0:
            self.leave_out()
            return None
        self._left -= 1.0
        omitted, self._omitted = self._omitted, 0
        return omitted

    def leave_out(self) -> None:
        """Count a line that is not logged."""
        self._omitted += 1
