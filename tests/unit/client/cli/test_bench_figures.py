"""Figures of a load, beside numpy's and hand-made ones."""

from __future__ import annotations

import numpy as np
import pytest
from headrace.cli.bench.chart import write_chart
from headrace.cli.bench.figures import figures_of, percentile, spread
from headrace.cli.bench.load import Felt
from hypothesis import given
from hypothesis import strategies as st

FELT = [
    Felt(0.0, 10, [(0.5, 1), (0.7, 2), (1.1, 1)], 1.2),
    Felt(1.0, 20, [(1.5, 4)], 1.5),
    Felt(2.0, 30, [(2.5, 1)], None, "ENGINE_LOST", "gone"),
    Felt(2.0, 0, [], None, "QUEUE_FULL", "full"),
]


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(
        float(np.percentile(values, percent)), rel=1e-9, abs=1e-9
    )


def test_what_requests_felt_is_counted() -> None:
    figures = figures_of(FELT, 3.0)
    assert (figures.completed, figures.tokens, figures.prompt_tokens) == (2, 9, 30)
    assert figures.failed == {"ENGINE_LOST": 1, "QUEUE_FULL": 1}
    assert figures.first_token.p50 == pytest.approx(0.5)
    assert (figures.gap.largest, figures.gap.mean) == (pytest.approx(0.4), pytest.approx(0.3))
    assert figures.per_token.mean == figures.per_token.largest == pytest.approx(0.2)
    assert figures.whole.largest == pytest.approx(1.2)


def test_nothing_felt_has_no_figures() -> None:
    figures = figures_of([], 0.1)
    assert figures.first_token == spread([])
    assert figures.first_token.p99 is None


@pytest.mark.parametrize("ending", ["svg", "png"])
@pytest.mark.parametrize("felt", [FELT, []])
def test_a_chart_is_written(tmp_path: object, ending: str, felt: list[Felt]) -> None:
    path = f"{tmp_path}/chart.{ending}"
    write_chart(path, "tiny", felt, 3.0)
    with open(path, "rb") as file:
        assert file.read(8).startswith(b"<?xml" if ending == "svg" else b"\x89PNG")
