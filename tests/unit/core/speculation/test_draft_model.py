"""A draft model: ids are those without, and what it computed is followed wherever its sequences' blocks go."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.config import ModelFormat
from headrace_engine.core.speculation.draft_state import DraftState, WrittenBlocks
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.ipc.plans import DraftPlan
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.draft_runner import DRAFTING, DraftRig
from support.core.rig import assert_goes_on
from support.core.simulated import GREEDY
from unit.core.guides.test_guided import EOS, LETTERS
from unit.core.speculation.test_drafted_ids import requests

PROMPT = list(range(1, 11))


@pytest.mark.parametrize("seen", [0, 1, 2, 3, 4])
def test_the_last_id_is_to_be_computed_though_it_was_drafted(seen: int) -> None:
    """The next one is sampled after it."""
    state, written = DraftState(0, blocks=[7, 8]), WrittenBlocks()
    state.computed, state.tail = 3, [4, 5]
    ids = [1, 2, 3, 4, 5, 6, 7][: 3 + seen]
    state.accept(ids, 4, written)
    assert state.computed == min(5, max(3, len(ids) - 1))
    assert (len(state.digests), state.tail) == (state.computed // 4, [])


def rig_of(errors: float = 0.0, **changes: Any) -> DraftRig:
    rig = DraftRig(**{**DRAFTING, **changes})
    rig.runner.errors = errors
    return rig


def all_hold(rig: DraftRig) -> bool:
    counters = rig.stat.counters
    return 0 < counters.drafted_tokens == counters.accepted_tokens


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(requests, min_size=1, max_size=6),
    errors=st.sampled_from([0.0, 0.2, 1.0]),
    blocks=st.integers(16, 40),
    steps=st.integers(0, 12),
    length=st.sampled_from([8, 30, 64]),
    dear=st.one_of(st.none(), st.floats(0.001, 1)),
)
def test_ids_are_those_without(
    wanted: list[dict[str, Any]], errors: float, blocks: int, steps: int, length: int, dear: float | None
) -> None:
    """Preempted where the pool is small, and handed to another core after some steps; whatever steps take."""
    draft = DraftPlan("simulated", ModelFormat.HF, length)
    timing = {} if dear is None else timing_of(dear)
    first, second = (rig_of(errors, num_blocks=blocks, draft=draft, **timing) for _ in range(2))
    for request in wanted:
        first.add(**request)
    first.steps(steps)
    assert_goes_on(first, second, wanted)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling": SamplingParams(seed=5)},
        {"rules": LogitRules(repetition_penalty=1.5, no_repeat_ngram_size=1)},
        {"grammar": LETTERS, "eos_ids": EOS, "min_new": 30},
    ],
)
def test_the_model_itself_drafts_what_holds(fields: dict[str, Any]) -> None:
    """It samples by the request's rules and random words; what it reads back is what the sequence holds."""
    rig = rig_of()
    for number in range(2):
        rig.add([*PROMPT, number], 30, **fields)
    rig.run()
    rig.assert_all_complete()
    assert all_hold(rig)
    assert len(rig.runner.batches) < 16
    rig.assert_idle()


def test_after_a_preemption_all_drafts_still_hold() -> None:
    rig = rig_of(num_blocks=24)
    for number in range(4):
        rig.add([*PROMPT, number], 30)
    rig.run()
    rig.assert_all_complete()
    assert rig.preempted
    assert all_hold(rig)
    rig.assert_idle()


def test_a_cached_prefix_is_not_computed_again() -> None:
    rig, prompt = rig_of(), list(range(1, 41))
    rig.add([*prompt, 50], 8)
    rig.run()
    computed = sum(count for batch in rig.runner.small.batches for _, count in batch)
    assert computed >= 41
    rig.runner.small.batches.clear()
    for number in range(3):
        rig.add([*prompt, 60 + number], 8)
    rig.run()
    rig.assert_all_complete()
    assert min(start for batch in rig.runner.small.batches for start, _ in batch) == 40
    assert all_hold(rig)
    rig.assert_idle()


def test_a_long_prompt_is_caught_up_with_once() -> None:
    """Several sequences of it: the draft model computes it once, some ids a step."""
    draft = DraftPlan("simulated", ModelFormat.HF, 1000)
    rig = rig_of(draft=draft, max_length=1000, num_blocks=900, max_prefill_tokens=1000)
    prompt = [number % 999 + 1 for number in range(600)]
    for index in range(3):
        rig.add(prompt, 90, index=index, sampling=SamplingParams(seed=3), group=1, more=index < 2)
    rig.run()
    rig.assert_all_complete()
    assert all_hold(rig)
    widest = max(sum(count for _, count in batch) for batch in rig.runner.small.batches)
    prompts = [count for batch in rig.runner.small.batches for start, count in batch if start < 600]
    assert widest <= 256
    assert 600 <= sum(prompts) < 660
    rig.assert_idle()


def test_nothing_is_drafted_that_is_not_worth_catching_up() -> None:
    rig = rig_of(max_length=256, num_blocks=200, max_prefill_tokens=256, draft=DraftPlan("", ModelFormat.HF, 256))
    rig.add(list(range(1, 200)), 4)
    rig.run()
    rig.assert_all_complete()
    assert not rig.runner.small.batches
    rig.assert_idle()


def timing_of(dear: float) -> dict[str, RowCosts]:
    """The times of steps, where one of the draft model takes `dear` of one of the model."""
    costs, draft_costs = RowCosts(), RowCosts()
    costs.start({1: 1.0, 16: 1.5})
    draft_costs.start({1: dear, 16: 1.2 * dear})
    return {"costs": costs, "draft_costs": draft_costs}


def measured(errors: float, dear: float) -> DraftRig:
    """Return a rig after 50 ids, where a step of the draft model takes `dear` of one of the model."""
    rig = rig_of(errors, **timing_of(dear))
    rig.runner.cost = lambda steps: 1.0 + (len(steps) - 1) / 30
    rig.runner.small.cost = lambda steps: dear
    rig.add([1, 2, 3], 50)
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()
    return rig


def test_a_quick_and_right_draft_model_is_used() -> None:
    rig = measured(errors=0.0, dear=0.05)
    assert len(rig.runner.batches) < 30
    assert all_hold(rig)


@pytest.mark.parametrize(("errors", "dear"), [(1.0, 0.05), (0.0, 1.0)])
def test_a_wrong_or_slow_draft_model_is_soon_left_alone(errors: float, dear: float) -> None:
    rig = measured(errors, dear)
    assert rig.stat.counters.drafted_tokens < 12
    assert sum(map(len, rig.runner.small.batches)) < 20


def test_a_draft_model_that_fails_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_of()
    rig.runner.small.raises = lambda step: step.start > 14
    keys = [rig.add([*PROMPT, number], 30, sampling=GREEDY) for number in range(2)]
    rig.run()
    rig.assert_all_complete()
    assert len(keys) == len(rig.ended) == 2
    assert [record.message for record in caplog.records if "draft_model_failed" in record.message]
    rig.assert_idle()
