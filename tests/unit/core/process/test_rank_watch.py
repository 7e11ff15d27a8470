"""A rank is lost that does nothing at all for the whole limit, and no sooner."""

from __future__ import annotations

import pytest
from headrace_engine.process.rank_watch import Stall

LIMIT = 10
"""Checks within the limit."""


def test_ten_checks_without_anything_are_the_limit() -> None:
    stall = Stall()
    assert [stall.note(False, 7, 3) for _ in range(LIMIT + 1)] == [False] * LIMIT + [True]


@pytest.mark.parametrize("moved", [(True, 7, 3), (False, 8, 3), (False, 7, 4)])
def test_anything_within_the_limit_starts_it_anew(moved: tuple[bool, int, int]) -> None:
    """An answer, processor time of the rank, or progress of rank 0, for which it may wait."""
    stall = Stall()
    checks = [(False, 7, 3)] * LIMIT + [moved] + [(False, *moved[1:])] * (LIMIT - 1)
    assert not any(stall.note(*check) for check in checks)


def test_a_rank_that_is_slow_throughout_is_never_lost() -> None:
    stall = Stall()
    assert not any(stall.note(False, 10 * check, 0) for check in range(100) for _ in range(LIMIT - 1))
