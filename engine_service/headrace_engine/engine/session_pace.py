"""How often a session tells of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headrace_engine.engine.session_channels import Timers


class Pace:
    """Lets tokens of quick steps wait for those of the next: an update costs each process on its way what a token does.

    What comes before the interval since the last update is over waits for the first step after it, but never longer
    than twice the interval.

    Args:
        interval: seconds.
        due: called when what waits is to be told.
    """

    def __init__(self, interval: float, timers: Timers, due: Callable[[], None]) -> None:
        self._interval, self._timers, self._due = interval, timers, due
        self._told = -math.inf
        self._alarm: Any = None
        self.holding = False

    def told(self) -> None:
        """There was an update: nothing waits any more."""
        self._told, self.holding = self._timers.time(), False

    def step(self) -> None:
        """There are tokens."""
        now = self._timers.time()
        self.holding = now < self._told + self._interval
        if not self.holding:
            self._due()
        elif self._alarm is None:
            self._arm(now)

    def close(self) -> None:
        """Call back no more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _arm(self, now: float) -> None:
        self._alarm = self._timers.call_later(self._told + 2 * self._interval - now, self._check)

    def _check(self) -> None:
        """What waits may have come after a later update than that for which the alarm was set."""
        self._alarm = None
        if not self.holding:
            return
        now = self._timers.time()
        if now < self._told + 2 * self._interval:
            self._arm(now)
        else:
            self.holding = False
            self._due()
