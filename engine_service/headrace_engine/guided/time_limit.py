"""Limits the processor time that a guided text takes from the steps it shares with other sequences."""

from __future__ import annotations

import time
from collections.abc import Callable

PER_ID = 0.02
"""Processor seconds allowed for each id, as the limits of the lexer are set."""

AHEAD = 0.2
"""Processor seconds that a text may take in excess, saved up from quick ids."""


class TimeLimit:
    """Processor time that one text has left: each step, and every sequence in it, waits for it.

    Args:
        clock: processor seconds of the calling thread.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._left = AHEAD
        self._began = 0.0

    def begin(self, ids: int) -> None:
        """Start the time for this many ids, plus what earlier ones left over, up to AHEAD."""
        self._left = min(self._left, AHEAD) + ids * PER_ID
        self._began = self._clock()

    def end(self) -> None:
        """Deduct the time that passed since `begin`."""
        self._left -= self._clock() - self._began

    @property
    def is_over(self) -> bool:
        """True if more time has passed since `begin` than was left."""
        return self._clock() - self._began > self._left
