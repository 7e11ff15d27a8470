"""Histograms, and what is counted of sequences that end."""

from __future__ import annotations

import pytest
from headrace_engine.engine.results.observations import MOST_OWNERS, OTHER_OWNERS, Observations
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.result_types import FinishReason, RequestStat
from headrace_proto.pure.histograms import Histogram
from hypothesis import given
from hypothesis import strategies as st

BOUNDS = (1.0, 2.0, 5.0)


@pytest.mark.parametrize(("value", "place"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (5.0, 2), (5.1, 3)])
def test_a_bucket_ends_with_its_bound(value: float, place: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.note(value)
    assert histogram.counts == [int(place == each) for each in range(4)]
    assert histogram.total == value


@given(st.lists(st.floats(0, 10) | st.sampled_from(BOUNDS)))
def test_many_at_once_count_as_one_by_one(values: list[float]) -> None:
    together, single = Histogram(BOUNDS), Histogram(BOUNDS)
    together.note_all(values)
    for value in values:
        single.note(value)
    assert together.counts == single.counts
    assert together.total == pytest.approx(single.total)


def test_owners_beyond_the_most_are_counted_together() -> None:
    observed = Observations()
    for number in range(MOST_OWNERS + 5):
        times = SequenceTimes(0.0, 3, owner=f"o{number}")
        observed.note_end(FinishReason.EOS, times, 2, first=True)
    assert len(observed.owners) == MOST_OWNERS + 1
    others = observed.owners[OTHER_OWNERS]
    assert (others.sequences, others.prompt_tokens, others.generated_tokens) == (5, 15, 10)
    assert observed.finished == {FinishReason.EOS: MOST_OWNERS + 5}


def test_what_another_engine_began_has_no_first_token_here() -> None:
    observed = Observations()
    observed.note_first_token(SequenceTimes(10.0, 3, kept=RequestStat(first_token_time=5.0)), 11.0)
    assert sum(observed.first_token_seconds.counts) == 0
    observed.note_first_token(SequenceTimes(10.0, 3), 11.0)
    assert observed.first_token_seconds.total == 1.0


def test_a_prompt_counts_once_and_where_it_began() -> None:
    observed = Observations()
    observed.note_end(FinishReason.EOS, SequenceTimes(0.0, 7), 1, first=True)
    observed.note_end(FinishReason.EOS, SequenceTimes(0.0, 7), 1, first=False)
    observed.note_end(FinishReason.EOS, SequenceTimes(0.0, 7, handovers=1), 1, first=True)
    assert observed.prompt_tokens.total == 7
    assert observed.generated_tokens.total == 3
