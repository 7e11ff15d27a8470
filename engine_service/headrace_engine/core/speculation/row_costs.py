"""Estimates how long a step takes, by its number of rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

_WEIGHT = 1 / 8
"""Weight of the newest step in an estimate."""

_RETURN = 1 / 768
"""Part of what was learned of single numbers of rows that is forgotten with each step: it may have been chance, and
would keep a number from being tried again."""

_MOST_CHANGE = 4.0
"""Maximum factor by which one step may deviate from its estimate: it may have been delayed."""


class RowCosts:
    """Seconds of a step that only decodes, by its number of rows.

    The ratios between numbers of rows are measured at the start. Later steps correct them: those without drafts the
    level of all numbers, and their own ratio; those with drafts their own ratio alone. Else what drafts cost would be
    taken for the level in the end, and steps without them for as slow.
    """

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._measured: list[float] = []
        self._level = 1.0
        self._factors: dict[int, float] = {}

    def start(self, measured: Mapping[int, float]) -> None:
        """Set the seconds of steps by their number of rows; steps with more rows take no less."""
        self._rows = sorted(measured)
        self._measured = list(accumulate((measured[rows] for rows in self._rows), max))

    def of(self, rows: int) -> float:
        """Return the seconds of a step; 0: nothing was measured."""
        return self._level * self._between(rows) * self._factors.get(rows, 1.0)

    def note(self, rows: int, seconds: float, *, drafted: bool = False) -> None:
        """Learn from a step.

        Args:
            drafted: some of its rows computed drafted ids.
        """
        expected = self.of(rows)
        if seconds <= 0 or expected <= 0:
            return
        error = min(max(seconds / expected, 1 / _MOST_CHANGE), _MOST_CHANGE) ** _WEIGHT
        if not drafted:
            self._level *= error
        self._factors[rows] = self._factors.get(rows, 1.0) * (error**2 if drafted else error)
        for known in self._factors:
            self._factors[known] **= 1 - _RETURN

    def _between(self, rows: int) -> float:
        """Return the measured seconds, in proportion between two numbers of rows, and beyond the last as before it."""
        if len(self._rows) < 2:
            return self._measured[0] if self._measured else 0.0
        last = min(max(1, bisect_left(self._rows, rows)), len(self._rows) - 1)
        share = (rows - self._rows[last - 1]) / (self._rows[last] - self._rows[last - 1])
        low, high = self._measured[last - 1], self._measured[last]
        return low + (high - low) * share
