"""Bounds how often servers log events that any caller can cause."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

BURST = 100
"""Maximum lines of one kind in a burst."""

PER_SECOND = 10.0
"""Lines of one kind per second, after a burst."""

PARTIES = 4
"""Parties that may use up the lines of one kind together: each has this part of the burst and of the rate."""

REPEAT_SECONDS = 60.0
"""Seconds between lines of one kind about the same subject: callers may retry every second."""

REMEMBERED = 1024
"""Number of recent subjects remembered, and of parties; older ones may be logged again sooner."""


T = TypeVar("T")


class LogBudget:
    """Limits the log lines of each kind, so that no caller can fill a disk or drown other lines. Any thread may use it.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, _Kind] = {}
        self._parties: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._logged: OrderedDict[Hashable, float] = OrderedDict()

    def spend(self, kind: Hashable, about: str = "", party: str = "") -> int | None:
        """Take one line of a kind from the budget.

        Args:
            about: subject of the line, such as a handle; "": none.
            party: who caused it, such as a host or an owner, whose lines must not displace those of others; "": none.

        Returns:
            Number of lines of this kind left out since the last one; None: leave out this one too.
        """
        with self._lock:
            return self._spend(kind, about, party, self._clock())

    def line(self, kind: Hashable, about: str = "", party: str = "") -> dict[str, int] | None:
        """Return what a line adds to its facts: "omitted", the number left out, if any. As `spend`."""
        omitted = self.spend(kind, about, party)
        return {"omitted": omitted} if omitted else None if omitted is None else {}

    def _spend(self, kind: Hashable, about: str, party: str, now: float) -> int | None:
        budget = self._kinds.setdefault(kind, _Kind(now))
        repeated = about and now - self._logged.get((kind, about), -math.inf) < REPEAT_SECONDS
        if repeated or (party and self._of_party((kind, party), now).spend(now) is None):
            budget.leave_out()
            return None
        omitted = budget.spend(now)
        if about and omitted is not None:
            _remember(self._logged, (kind, about), now)
        return omitted

    def _of_party(self, who: Hashable, now: float) -> _Kind:
        found = self._parties.get(who) or _Kind(now, 1 / PARTIES)
        _remember(self._parties, who, found)
        return found


def _remember(latest: OrderedDict[Hashable, T], what: Hashable, value: T) -> None:
    latest[what] = value
    latest.move_to_end(what)
    if len(latest) > REMEMBERED:
        latest.popitem(last=False)


class _Kind:
    def __init__(self, now: float, part: float = 1.0) -> None:
        self._most, self._rate = BURST * part, PER_SECOND * part
        self._left, self._time, self._omitted = self._most, now, 0

    def spend(self, now: float) -> int | None:
        self._left = min(self._most, self._left + (now - self._time) * self._rate)
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
