"""What tests/support/backends/same_tokens.py lets pass and what it does not."""

from __future__ import annotations

import pytest
from support.backends.same_tokens import same_tokens

WIDE = [[0.0, 1.0, 5.0]] * 3
CLOSE = [[0.0, 1.0, 5.0], [0.0, 4.99999, 5.0], [0.0, 1.0, 5.0]]


def test_identical_runs_are_the_same_and_report_the_smallest_gap(capsys):
    found = same_tokens([[2, 2, 2]], [[2, 2, 2]], [CLOSE])
    assert found.smallest_gap == pytest.approx(1e-5)
    assert found.share == 0
    assert "smallest gap 1e-05" in capsys.readouterr().out


def test_without_rounding_any_difference_fails():
    with pytest.raises(AssertionError, match="run 0 parts at token 1"):
        same_tokens([[2, 2, 2]], [[2, 1, 2]], [CLOSE])


def test_a_difference_at_a_close_call_ends_the_comparison():
    runs = [[2, 2, 2]] * 20
    found = same_tokens(runs, [*runs[1:], [2, 1, 0]], [CLOSE] * 20, rounding=1e-4)
    assert found.split == [19]


def test_more_than_one_run_in_twenty_that_parts_fails():
    runs = [[2, 2, 2]] * 20
    with pytest.raises(AssertionError, match=r"10\.0% of 20 runs"):
        same_tokens(runs, [*runs[2:], [2, 1, 0], [2, 1, 2]], [CLOSE] * 20, rounding=1e-4)


def test_a_difference_where_the_scores_are_far_apart_fails():
    with pytest.raises(AssertionError, match="4 apart"):
        same_tokens([[2, 2, 2]] * 20, [[2, 2, 2]] * 19 + [[2, 1, 2]], [WIDE] * 20, rounding=1e-4)


def test_a_run_that_ends_early_is_not_the_same():
    with pytest.raises(AssertionError, match="parts at token 2"):
        same_tokens([[2, 2, 2]], [[2, 2]], [WIDE])


def test_a_run_that_goes_on_is_not_the_same():
    with pytest.raises(AssertionError, match="parts at token 3"):
        same_tokens([[2, 2, 2]] * 20, [[2, 2, 2]] * 19 + [[2, 2, 2, 1]], [CLOSE] * 20, rounding=1e-4)
