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
        per_id: seconds allowed for each id.
        ahead: seconds that may be taken in excess.
    """

    def __init__(
        self, clock: Callable[[], float] = time.thread_time, per_id: float = PER_ID, ahead: float = AHEAD
    ) -> None:
        self._clock = clock
        self._per_id = per_id
        self._ahead = ahead
        self._left = ahead
        self._began = 0.0

    def begin(self, ids: int) -> None:
        """Start the time for this many ids, plus what earlier ones left over, up to `ahead`."""
        self._left = min(self._left, self._ahead) + ids * self._per_id
        self._began = self._clock()

    def end(self) -> None:
        """Deduct the time that passed since `begin`."""
        self._left -= self._clock() - self._began

    @property
    def is_over(self) -> bool:
        """True if more time has passed since `begin` than was left."""
        return self._clock() - self._began > self._left
