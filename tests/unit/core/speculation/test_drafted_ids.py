"""Whatever ids are drafted, sequences get those that they get without, on the simulated runner."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.config import Speculation
from headrace_engine.core.scheduling.drafts.drafted_steps import drafted_steps
from headrace_engine.core.scheduling.schedule import Row
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.delayed_runner import DelayedRig
from support.core.drafter import KnowingDrafter
from support.core.rig import Rig, assert_goes_on
from support.core.simulated import GREEDY, VOCABULARY
from unit.core.guides.test_guided import EOS, LETTERS, NUMBERS, WORD

PROMPT = list(range(1, 11))

rules = st.builds(
    LogitRules,
    no_repeat_ngram_size=st.sampled_from([0, 1, 2]),
    bad_words=st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=2).map(tuple), max_size=30).map(tuple),
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(1, 999), min_size=1, max_size=24),
        "max_new": st.integers(1, 30),
        "sampling": st.one_of(st.just(GREEDY), st.builds(SamplingParams, seed=st.integers(0, 9))),
        "rules": st.one_of(st.none(), rules),
        "grammar": st.sampled_from(["", "", LETTERS, NUMBERS, WORD]),
        "eos_ids": st.one_of(st.just(EOS), st.lists(st.integers(0, 999), max_size=60).map(tuple)),
        "stop_ids": st.lists(st.integers(0, 999), max_size=30).map(tuple),
        "min_new": st.integers(0, 5),
        "tensors": st.booleans(),
        "prompt_logprobs": st.sampled_from([None, None, 1]),
        "use_speculation": st.sampled_from([True, True, True, False]),
    }
)


def speculating(drafter: KnowingDrafter, kind: type[Rig] = Rig, **changes: Any) -> Rig:
    return kind(drafter=drafter, speculation=Speculation.NGRAM, max_drafts=7, **changes)


def add(rig: Rig, drafter: KnowingDrafter, **request: Any) -> int:
    """Add a sequence whose ids the drafter knows."""
    key = rig.add(**request)
    drafter.learn(rig, key)
    return key


@pytest.mark.parametrize("kind", [Rig, DelayedRig])
@settings(max_examples=40, deadline=None)
@given(
    wanted=st.lists(requests, min_size=1, max_size=6),
    seed=st.integers(0, 99),
    errors=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    blocks=st.integers(16, 40),
    steps=st.integers(0, 12),
)
def test_ids_are_those_without_drafts(
    kind: type[Rig], wanted: list[dict[str, Any]], seed: int, errors: float, blocks: int, steps: int
) -> None:
    """Preempted where the pool is small, and handed to another core after some steps."""
    drafter = KnowingDrafter(seed, errors, VOCABULARY)
    first, second = (speculating(drafter, kind, num_blocks=blocks) for _ in range(2))
    for request in wanted:
        add(first, drafter, **request)
    first.steps(steps)
    assert_goes_on(first, second, wanted)


def test_right_drafts_take_fewer_steps() -> None:
    drafter = KnowingDrafter(1, 0.0, VOCABULARY)
    rig = speculating(drafter)
    add(rig, drafter, prompt=PROMPT, max_new=30)
    rig.run()
    rig.assert_all_complete()
    assert len(rig.runner.batches) < 20
    assert max(len(batch) for batch in rig.runner.batches) == 8
    counters = rig.stat.counters
    assert counters.drafted_tokens == counters.accepted_tokens == 30 - len(rig.runner.batches)
    reported = [drafts for output in rig.outputs for drafts in output.drafts]
    assert sum(drafts.accepted for drafts in reported) == counters.accepted_tokens
    rig.assert_idle()


def test_nothing_is_drafted_past_the_last_id() -> None:
    drafter = KnowingDrafter(1, 0.0, VOCABULARY)
    rig = speculating(drafter)
    key = add(rig, drafter, prompt=PROMPT, max_new=30)
    rig.run()
    assert rig.tokens[key] == drafter.answers[key]
    computed = sum(count for batch in rig.runner.batches for _, count in batch)
    assert computed == len(PROMPT) + 29
    rig.assert_idle()


def test_a_request_may_do_without() -> None:
    drafter = KnowingDrafter(1, 0.0, VOCABULARY)
    rig = speculating(drafter)
    add(rig, drafter, prompt=PROMPT, max_new=30, use_speculation=False)
    rig.run()
    rig.assert_all_complete()
    assert drafter.drafted == 0
    rig.assert_idle()


def test_a_failed_step_with_drafts_is_computed_row_by_row() -> None:
    """The id that fails is only drafted: nothing ends."""
    drafter = KnowingDrafter(3, 0.4, VOCABULARY)
    rig = speculating(drafter)
    keys = [add(rig, drafter, prompt=[*PROMPT, number], max_new=30) for number in range(3)]
    right = {token for ids in drafter.answers.values() for token in ids}
    rig.runner.raises = lambda step: bool(set(step.token_ids) - right - set(range(1, 11)) - {0})
    rig.run()
    rig.assert_all_complete()
    assert {rig.ended[key].reason for key in keys} == {FinishReason.MAX_LENGTH}
    rig.assert_idle()


def test_drafts_do_not_preempt() -> None:
    """Blocks for drafted ids are those that nobody needs."""
    for errors in (0.0, 1.0):
        drafter = KnowingDrafter(5, errors, VOCABULARY)
        rig = speculating(drafter, num_blocks=24)
        for number in range(3):
            add(rig, drafter, prompt=[*PROMPT, number], max_new=20, interrupt_policy=InterruptPolicy.RETURN)
        rig.run()
        rig.assert_all_complete()
        assert drafter.drafted > 0
        rig.assert_idle()


def test_a_plan_with_drafts_has_rows_for_them() -> None:
    plan = CorePlan("", Rig().plan.format, max_batch=4)
    assert plan.max_rows == 4
    assert CorePlan("", plan.format, max_batch=4, speculation=Speculation.GRAMMAR).max_rows == 16
    assert CorePlan("", plan.format, max_batch=64, speculation=Speculation.GRAMMAR).max_rows == 64


def test_a_sequence_is_left_as_it_was() -> None:
    request = AddSequence(1, (5, 6, 7), GREEDY, 20, rules=LogitRules(repetition_penalty=1.5, no_repeat_ngram_size=2))
    sequence = Sequence(request, 0)
    sequence.ids.append(8)
    sequence.computed = 3
    steps = [*drafted_steps(sequence, 1, [8, 9]), *Row(sequence, 1).steps()]
    penalized = [list(step.changes.penalized) for step in steps if step.changes is not None]
    assert penalized == [[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8, 9], [5, 6, 7, 8]]
    assert (sequence.ids, sequence.computed) == ([5, 6, 7, 8], 3)
