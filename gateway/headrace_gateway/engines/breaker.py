"""Circuit breaking: an engine that answers polls but fails what it is given gets nothing more for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 5
"""Failures in a row that open the circuit."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Breaker:
    """Counts the failures of one engine in a row.

    After FAILURES it is open: the engine is passed over while others can serve. After a pause, which doubles each time
    up to LONGEST_PAUSE, one start is let through; its success closes the circuit.

    Args:
        now: monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._open_until = 0.0

    @property
    def closed(self) -> bool:
        """True if the engine may get requests."""
        return self._failures < FAILURES or self._now() >= self._open_until

    def trying(self) -> None:
        """Record a start; of an open circuit that may be tried again, it is the only one for a pause."""
        if self._failures >= FAILURES:
            self._open_until = self._now() + self._pause

    def succeeded(self) -> None:
        """Record an answer that is no failure of the engine, if only a refusal."""
        self._failures = 0
        self._pause = FIRST_PAUSE

    def failed(self) -> bool:
        """Record a failure; return True if it opened the circuit."""
        self._failures += 1
        if self._failures < FAILURES:
            return False
        self._open_until = self._now() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._failures == FAILURES
