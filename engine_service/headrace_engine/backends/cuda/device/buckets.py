"""The sizes of batches for which steps are captured."""

from __future__ import annotations

from bisect import bisect_left

_SMALL = (1, 2, 4)
_STEP, _LONG_STEP, _LONG = 8, 16, 256


def bucket_sizes(largest: int) -> list[int]:
    """Rows of the captured steps, ascending: the last takes the largest batch.

    Waste is what a batch is filled up with: at most one row of two, then seven rows, and above 256 fifteen.
    """
    sizes = [*_SMALL, *range(_STEP, _LONG, _STEP), *range(_LONG, largest + _LONG_STEP, _LONG_STEP)]
    return [*(size for size in sizes if size < largest), largest]


def bucket_of(sizes: list[int], rows: int) -> int | None:
    """The smallest size that takes so many rows; None: there is none."""
    position = bisect_left(sizes, rows)
    return sizes[position] if position < len(sizes) else None
