"""Steps one ahead: what sequences get is what they get where each step waits for the one before."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core.delayed_runner import DelayedRig
from support.core.rig import Rig
from support.core.simulated import VOCABULARY, expected, expected_scores
from unit.core.guides.test_guided import EOS, LETTERS
from unit.core.scheduling.conftest import MakeDelayed

PROMPT = list(range(1, 11))


def test_the_next_step_is_launched_before_these_ids_are_known(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    for first in (1, 20, 40):
        rig.add(range(first, first + 10), 8)
    rig.run()
    rig.assert_all_complete()
    assert rig.runner.launches == 8, "nothing is computed past max_new"
    assert rig.runner.overlapped == 7
    assert rig.runner.unknown == 3 * 7


def test_each_step_is_told_when_the_next_one_was_launched(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    key = rig.add(PROMPT, 5)
    reported = []
    while rig.core.busy or rig.link.commands:
        rig.step()
        reported.append((rig.runner.launches, len(rig.tokens[key])))
    assert reported == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (5, 5)]


def test_an_idle_core_still_waits_for_what_it_launched(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    key = rig.add(PROMPT, 20)
    rig.steps(3)
    rig.end(key)
    rig.run()
    assert rig.runner._under_way() == 0
    assert rig.stat.pool.blocks_used == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"rules": LogitRules(no_repeat_ngram_size=1)},
        {"rules": LogitRules(bad_words=((7, 9), (11,)))},
        {"grammar": LETTERS, "eos_ids": EOS},
        {"tensors": True},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_steps_that_need_the_ids_wait_for_them(make_delayed: MakeDelayed, asked: dict[str, Any]) -> None:
    """Such a sequence makes all wait, as it would without overlap; the others go ahead again when it has ended."""
    rig = make_delayed()
    rig.add(range(50, 60), 12)
    asking = rig.add(PROMPT, 5, **asked)
    while rig.core._scheduler.find(asking) is None:  # Where a grammar is compiled, it is not there at once.
        rig.step()
    before = rig.runner.unknown
    while asking not in rig.ended:
        rig.step()
    assert rig.runner.unknown <= before + 1, "while it drew its last token, behind which nothing follows"
    assert rig.is_complete(asking)
    rig.add(range(60, 70), 12)
    rig.run()
    rig.assert_all_complete()
    assert rig.runner.unknown > before + 1


def test_log_probabilities_of_a_prompt_are_told_once(make_delayed: MakeDelayed) -> None:
    rig = make_delayed(max_prefill_tokens=8)
    prompt = list(range(100, 130))
    keys = [rig.add(prompt, 6, prompt_logprobs=2), rig.add(range(50, 60), 12)]
    rig.run()
    rig.assert_all_complete()
    assert rig.prompt_logprobs[keys[0]] == expected_scores(prompt, 2)


def test_nobody_gives_way_while_an_end_may_leave_blocks(make_delayed: MakeDelayed) -> None:
    """Where blocks run out, what is under way lands first: then it is decided as without overlap."""
    runs = [rig_class(num_blocks=16, max_batch=4) for rig_class in (DelayedRig, Rig)]
    for rig in runs:
        for first in (100, 200, 300):
            rig.add(range(first, first + 16), 30, interrupt_policy=InterruptPolicy.RETURN)
        rig.run()
    delayed, plain = runs
    assert delayed.tokens == plain.tokens
    assert delayed.ended == plain.ended
    assert any(ended.reason is FinishReason.INTERRUPTED for ended in plain.ended.values())
    assert isinstance(delayed, DelayedRig)
    assert delayed.runner.overlapped > 10
    for rig in runs:
        rig.assert_idle()


def test_blocks_are_shared_only_when_they_are_computed(make_delayed: MakeDelayed) -> None:
    """A sequence that comes while the prompt is under way finds nothing of it; one that comes later does."""
    rig = make_delayed()
    rig.add(PROMPT, 12)
    rig.step()
    early = rig.add(PROMPT, 3)
    rig.steps(2)
    late = rig.add(PROMPT, 3)
    rig.run()
    rig.assert_all_complete()
    assert (rig.cached[early], rig.cached[late]) == (0, 8)


def test_members_of_a_group_wait_for_their_prompt(make_delayed: MakeDelayed) -> None:
    rig = make_delayed()
    keys = [rig.add(PROMPT, 6, group=5, index=i, sampling=SamplingParams(seed=3)) for i in range(3)]
    rig.run()
    rig.assert_all_complete()
    assert [rig.cached[key] for key in keys] == [0, 8, 8]


def test_who_is_under_way_is_told_before_a_step_is_launched(make_delayed: MakeDelayed) -> None:
    """Also those of the step before, which may be the one that ends the core."""
    rig = make_delayed()
    first = rig.add(PROMPT, 3)
    rig.step()
    rig.steps(1)
    second = rig.add(range(50, 60), 6)
    rig.run()
    assert rig.begun == [[first], [first, second], [second]]


def test_tier_moves_happen_in_the_order_of_steps(make_delayed: MakeDelayed) -> None:
    rig = make_delayed(num_blocks=16, num_host_blocks=32)
    prompts = [range(first, first + 30) for first in (100, 200, 300)]
    for _ in range(3):
        for prompt in prompts:
            rig.add(prompt, 10)
        rig.run()
    rig.assert_all_complete()
    assert any(copies.to_host for copies in rig.runner.copied)
    assert any(copies.to_pool for copies in rig.runner.copied)


ids = st.integers(0, 40)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(ids, min_size=1, max_size=30),
        "max_new": st.integers(1, 20),
        "sampling": st.builds(SamplingParams, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 3)),
        "eos_ids": st.sets(st.integers(0, VOCABULARY - 1), max_size=120).map(tuple),
        "stop_ids": st.sets(st.integers(0, VOCABULARY - 1), max_size=60).map(tuple),
        "min_new": st.integers(0, 1),
        "priority": st.integers(0, 1),
        "rules": st.sampled_from([None, None, None, LogitRules(no_repeat_ngram_size=2)]),
        "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        "group": st.sampled_from([0, 0, 0, 7]),
        "use_prefix_cache": st.booleans(),
        "interrupt_policy": st.sampled_from([InterruptPolicy.RESUME, InterruptPolicy.RETURN]),
    }
)
actions = st.lists(st.tuples(st.sampled_from(["add", "add", "end"]), requests, st.integers(0, 6)), max_size=10)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    wanted=actions,
    blocks=st.sampled_from([16, 20, 64]),
    host=st.sampled_from([0, 12]),
    fails=st.sampled_from([None, None, "raises", "refuses", "spoils"]),
)
def test_whatever_comes_each_gets_what_it_gets_alone(
    wanted: list[tuple[str, dict[str, Any], int]], blocks: int, host: int, fails: str | None
) -> None:
    """Ids, their order and their ends, whatever joins, ends or fails meanwhile; and nothing is lost of the pool."""
    rig = DelayedRig(num_blocks=blocks, num_host_blocks=host, max_prefill_tokens=16, max_batch=4)
    if fails is not None:
        setattr(rig.runner, fails, lambda step: 13 in step.token_ids and step.start % 3 == 0)
    ended = set()
    for action, request, steps in wanted:
        if action == "add":
            rig.add(**{**request, "prompt": tuple(request["prompt"])})
        elif rig.requests:
            ended.add(key := 1 + steps % len(rig.requests))
            rig.end(key)
        rig.steps(steps)
    rig.run()
    for key, request in rig.requests.items():
        alone, got = expected(request), rig.tokens[key]
        assert got == alone[: len(got)]
        if key in ended:
            continue
        reason = rig.ended[key].reason
        if reason is FinishReason.ERROR:
            assert fails
        elif reason is not FinishReason.INTERRUPTED:
            assert got == alone
    rig.core.check_integrity()
    rig.assert_idle()
