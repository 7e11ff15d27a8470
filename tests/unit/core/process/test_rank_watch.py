"""A rank is lost that does nothing at all for the whole limit, and no sooner."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest
from headrace_engine.ipc.messages import CoreFailed
from headrace_engine.process.rank_link import RankLink
from headrace_engine.process.rank_watch import Stall, watch

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


def test_the_end_of_a_rank_is_noticed_whatever_the_limit() -> None:
    """Poll takes no more than 2³¹ − 1 milliseconds."""
    ours, theirs = socket.socketpair()
    theirs.close()
    ended = CoreFailed("ENGINE_FAULT", "ended")
    rank = Mock(spec=RankLink, number=1, descriptor=ours.fileno(), failure=lambda: ended)
    assert watch([rank], 1e12, lambda: 0) is ended
    ours.close()
