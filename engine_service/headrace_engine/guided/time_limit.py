"""What the ids of a text may take of the steps that they share with others."""

from __future__ import annotations

import time
from collections.abc import Callable

PER_ID = 0.02
"""Processor seconds of each id: what the limits of the lexer allow."""

AHEAD = 0.2
"""Processor seconds that a text may take beyond these, now or with its next ids."""


class TimeLimit:
    """The processor time that one text has left. Steps wait for it, and so do all who are in them.

    Args:
        clock: processor seconds of the thread that asks.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._left = AHEAD
        self._began = 0.0

    def begin(self, ids: int) -> None:
        """Allow for so many ids from now on. What earlier ones left is kept, up to a limit."""
        self._left = min(self._left, AHEAD) + ids * PER_ID
        self._began = self._clock()

    def end(self) -> None:
        """Take what has passed since `begin` off."""
        self._left -= self._clock() - self._began

    @property
    def is_over(self) -> bool:
        """Whether more has passed since `begin` than was left."""
        return self._clock() - self._began > self._left
