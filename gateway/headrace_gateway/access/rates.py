"""Token buckets: how often an owner may do something."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_REMEMBERED = 100_000
"""Owners remembered; those that were quiet longest are forgotten, with full buckets in most cases."""


class Rates:
    """Starts a minute, by owner. A minute's number may come at once, and then as many as the rate allows.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, owner: str, per_minute: int) -> float:
        """Take one. Return 0, or, if none is left, the seconds until there is one."""
        now = self._clock()
        level, seen = self._buckets.get(owner, (float(per_minute), now))
        level = min(float(per_minute), level + (now - seen) * per_minute / 60)
        wait = 0.0 if level >= 1 else (1 - level) * 60 / per_minute
        self._buckets[owner] = (level - (wait == 0), now)
        self._buckets.move_to_end(owner)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return wait
