"""Drafts are computed where what was measured says that they gain."""

from __future__ import annotations

from itertools import pairwise

import pytest
from headrace_engine.config import Speculation
from headrace_engine.core.speculation.acceptance import Checked, Guess, Likelihoods
from headrace_engine.core.speculation.choice import best_counts
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.ipc.plans import MOST_ROWS
from hypothesis import given
from hypothesis import strategies as st
from support.core.drafter import KnowingDrafter
from support.core.simulated import VOCABULARY
from unit.core.conftest import MakeRig

costs_by_row = st.lists(st.floats(0.1, 4), min_size=MOST_ROWS, max_size=MOST_ROWS)


def costs_of(seconds: list[float]) -> RowCosts:
    costs = RowCosts()
    costs.start(dict(enumerate(seconds, 1)))
    return costs


@given(seconds=costs_by_row, data=st.data())
def test_the_choice_gives_most_ids_per_second(seconds: list[float], data: st.DataObject) -> None:
    """Against a search of all numbers of drafts, the likeliest first."""
    sequences = data.draw(st.integers(1, 4))
    chances = [sorted(data.draw(st.lists(st.floats(0, 1), max_size=4)), reverse=True) for _ in range(sequences)]
    most, costs = data.draw(st.integers(0, MOST_ROWS - sequences)), costs_of(seconds)
    counts = best_counts(chances, most, costs)
    ordered = sorted((chance for row in chances for chance in row), reverse=True)[:most]
    rates = [(sequences + sum(ordered[:count])) / costs.of(sequences + count) for count in range(len(ordered) + 1)]
    taken = [chance for row, count in zip(chances, counts, strict=True) for chance in row[:count]]
    rate = (sequences + sum(taken)) / costs.of(sequences + len(taken))
    assert rate == pytest.approx(max(rates)) or (not taken and max(rates) <= rate * 1.1001)


def test_without_measurements_all_are_chosen() -> None:
    assert best_counts([[0.9, 0.1], [], [0.5]], 8, RowCosts()) == [2, 0, 1]
    assert best_counts([[0.9, 0.1], [], [0.5]], 2, RowCosts()) == [1, 0, 1]


def test_times_between_measured_rows_are_in_proportion() -> None:
    costs = RowCosts()
    assert costs.of(3) == 0
    costs.start({4: 3.0, 1: 1.0, 2: 2.0, 8: 2.5})
    assert [costs.of(rows) for rows in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1, 2, 2.5, 3, 3, 3, 3])


@given(level=st.floats(0.3, 3), seconds=costs_by_row)
def test_times_follow_what_steps_take(level: float, seconds: list[float]) -> None:
    """All of them follow the level, whichever was measured; a number of rows follows its own times."""
    costs, first = costs_of(seconds), costs_of(seconds)
    for _ in range(200):
        costs.note(1, level * first.of(1))
    assert costs.of(1) == pytest.approx(level * first.of(1), rel=0.02)
    for rows in range(2, MOST_ROWS + 1):
        assert min(1, level) * 0.98 <= costs.of(rows) / first.of(rows) <= max(1, level) * 1.02


def test_a_slow_step_does_not_end_drafting_for_good() -> None:
    costs = costs_of([1.0 + 0.1 * rows for rows in range(MOST_ROWS)])
    before = costs.of(8) / costs.of(1)
    for _ in range(20):
        costs.note(8, 40.0)
    assert costs.of(8) / costs.of(1) > 2 * before
    for _ in range(2000):
        costs.note(1, 1.0)
    assert costs.of(8) / costs.of(1) < 1.5 * before


def test_guesses_are_checked_though_not_computed() -> None:
    """One id comes at a time; each was guessed before."""
    shared = Likelihoods()
    checked, ids = Checked(shared), [1]
    first = checked.expect(ids, Guess([2, 3], "likely"))
    for token_id in range(2, 40):
        ids.append(token_id)
        checked.check(ids)
        likely = checked.expect(ids, Guess([token_id + 1, token_id + 2], "likely"))
    assert first == pytest.approx([0.2, 0.04])
    assert likely[0] > 0.95
    assert shared.of("likely") > 0.9
    assert Checked(shared).expect([1], Guess([2], "likely")) == [shared.of("likely")]
    assert Checked(shared).expect([1], Guess([2], "other")) == [0.2]


def test_the_first_wrong_id_is_the_last_checked() -> None:
    shared = Likelihoods(weight=1.0)
    checked = Checked(shared)
    checked.expect([1], Guess([2, 9, 4], "kind"))
    checked.check([1, 2, 3, 4])
    assert shared.of("kind") == 0


def steps_of(make_rig: MakeRig, errors: float, growth: float) -> tuple[int, int]:
    """Steps of a sequence of 40 ids, and its drafted ids, where each further row of a step takes `growth` of a row."""
    drafter = KnowingDrafter(1, errors, VOCABULARY)
    costs = RowCosts()
    costs.start({1: 1.0, 16: 1.0 + 15 * growth})
    rig = make_rig(drafter=drafter, costs=costs, speculation=Speculation.NGRAM)
    rig.runner.cost = lambda steps: 1.0 + (len(steps) - 1) * growth
    key = rig.add([1, 2, 3], 40)
    drafter.learn(rig, key)
    rig.run()
    rig.assert_all_complete()
    return len(rig.runner.batches), rig.stat.counters.drafted_tokens


def test_right_and_cheap_drafts_are_computed(make_rig: MakeRig) -> None:
    steps, drafted = steps_of(make_rig, errors=0.0, growth=0.1)
    assert steps < 20
    assert drafted >= 20


@pytest.mark.parametrize(("errors", "growth"), [(1.0, 0.1), (0.0, 1.0), (0.5, 0.9)])
def test_wrong_or_dear_drafts_are_soon_left_out(make_rig: MakeRig, errors: float, growth: float) -> None:
    steps, drafted = steps_of(make_rig, errors, growth)
    assert drafted < 12
    assert steps > 32


def test_what_drafts_cost_is_not_taken_for_the_level() -> None:
    """Steps with drafts take twice what was measured at the start; a few without any tell them apart."""
    costs = costs_of([1.0] * MOST_ROWS)
    for number in range(1700):
        drafted = number % 17 > 0
        costs.note(16 if drafted else 4, 2.0 if drafted else 1.0, drafted=drafted)
    assert costs.of(4) == pytest.approx(1.0, rel=0.05)
    assert costs.of(16) == pytest.approx(2.0, rel=0.05)


def test_drafts_that_are_dearer_than_measured_are_left_out(make_rig: MakeRig) -> None:
    """All of them hold, but a row takes longer than a step: soon they are only tried now and then."""
    drafter = KnowingDrafter(1, 0.0, VOCABULARY)
    costs = RowCosts()
    costs.start({1: 1.0, 16: 1.1})
    plan = {"speculation": Speculation.NGRAM, "max_length": 900, "num_blocks": 300}
    rig = make_rig(drafter=drafter, costs=costs, **plan)
    rig.runner.cost = lambda steps: 2.0 * len(steps) - 1.0
    drafter.learn(rig, rig.add([1, 2, 3], 800))
    rig.run()
    rig.assert_all_complete()
    last = rig.runner.batches[-200:]
    assert sum(len(batch) > 1 for batch in last) < 40


def test_every_so_often_a_step_has_no_drafts(make_rig: MakeRig) -> None:
    drafter = KnowingDrafter(1, 0.0, VOCABULARY)
    rig = make_rig(drafter=drafter, speculation=Speculation.NGRAM, max_drafts=1, max_length=900, num_blocks=300)
    drafter.learn(rig, rig.add([1, 2, 3], 800))
    rig.run()
    rig.assert_all_complete()
    widths = [len(batch) for batch in rig.runner.batches[1:]]
    drafted = [number for number, width in enumerate(widths) if width > 1]
    assert len(drafted) > 200
    assert any(b - a > 1 for a, b in pairwise(drafted))
