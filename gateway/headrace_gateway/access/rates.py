"""Token buckets: how much an owner may do in a minute."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_REMEMBERED = 100_000
"""Owners remembered; those that were quiet longest are forgotten, with full buckets in most cases."""


class Rates:
    """Starts, or tokens, a minute, by owner. A minute's number may come at once, and then as many as the rate allows.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, owner: str, per_minute: int, amount: int = 1) -> float:
        """Take an amount. Return 0, or, if less is left, the seconds until it is there."""
        wait = self.wait(owner, per_minute, amount)
        if not wait:
            self.charge(owner, per_minute, amount)
        return wait

    def wait(self, owner: str, per_minute: int, amount: int = 1) -> float:
        """Return the seconds until an amount is there; 0: it is."""
        level = self.level(owner, per_minute)
        return 0.0 if level >= amount else (amount - level) * 60 / per_minute

    def level(self, owner: str, per_minute: int) -> float:
        """Return what is left; below 0 after more was charged than there was."""
        now = self._clock()
        level, seen = self._buckets.get(owner, (float(per_minute), now))
        return min(float(per_minute), level + (now - seen) * per_minute / 60)

    def charge(self, owner: str, per_minute: int, amount: int) -> None:
        """Take an amount, whether or not it is there: what is missing is paid off at the rate."""
        self._buckets[owner] = (self.level(owner, per_minute) - amount, self._clock())
        self._buckets.move_to_end(owner)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
