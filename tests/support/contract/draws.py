"""Seeds to draw answers with, until all kinds have come that a test is about."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import pytest

_MOST = 200


def until_both(seen: Sized, least: int = 8) -> Iterator[int]:
    """Yield seeds until two kinds of answers have come; fail if they do not both come.

    Args:
        seen: kinds that have come; the test adds to them.
        least: number of seeds that are tried in any case.
    """
    for seed in range(_MOST):
        if seed >= least and len(seen) == 2:
            return
        yield seed
    pytest.fail(f"of {_MOST} answers all are {seen}")
