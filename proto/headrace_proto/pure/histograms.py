"""Counts of values in buckets, for metrics."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

REQUEST_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Upper bounds of the buckets of times of requests."""


class Histogram:
    """Numbers of values by bucket, and their sum.

    Args:
        bounds: largest value of each bucket, ascending; one more bucket has what is above them all.

    Attributes:
        counts: number of values in each bucket.
        total: sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def note_all(self, values: Iterable[float]) -> None:
        """Count many values, in a time that sorting takes."""
        ordered = sorted(values)
        below = 0
        for index, bound in enumerate(self.bounds):
            up_to = bisect_right(ordered, bound, below)
            self.counts[index] += up_to - below
            below = up_to
        self.counts[-1] += len(ordered) - below
        self.total += sum(ordered)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus has them: bounds, and the number of values up to each."""
        bounds = [*map(str, map(float, self.bounds)), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
