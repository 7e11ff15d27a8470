"""Sizes for which steps are captured."""

from __future__ import annotations

from bisect import bisect_left

_SMALL = (1, 2, 4)
_STEP, _LONG_STEP, _LONG = 8, 16, 256
_FEW_ROWS, _ROW_STEP, _MOST_ROWS = 32, 64, 512


def bucket_sizes(largest: int) -> list[int]:
    """Return the rows of the captured steps, ascending; the last fits the largest batch.

    A batch is padded to the next size: small ones by at most half, others by at most 7 rows, above 256 by at most 15.
    """
    sizes = [*_SMALL, *range(_STEP, _LONG, _STEP), *range(_LONG, largest + _LONG_STEP, _LONG_STEP)]
    return [*(size for size in sizes if size < largest), largest]


def prompt_sizes(largest: int) -> list[int]:
    """Return the rows of the captured steps that hold prompts, ascending, of steps of up to `largest` rows.

    A step of more than 512 rows computes for longer than it takes to launch its ops.
    """
    most = min(largest, _MOST_ROWS)
    return [*(size for size in (_FEW_ROWS, *range(_ROW_STEP, most, _ROW_STEP)) if size < most), most]


def bucket_of(sizes: list[int], rows: int) -> int | None:
    """Return the smallest size of at least `rows`; None: there is none."""
    position = bisect_left(sizes, rows)
    return sizes[position] if position < len(sizes) else None
