"""Sequences of one request compute their prompt once, go on from it together, and get what each gets alone."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from headrace_engine.commands import in_common
from headrace_engine.core.scheduling import logit_state
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.delayed_runner import DelayedRig
from support.core.rig import Rig
from support.core.simulated import expected_scores

PROMPT = list(range(100, 130))
NUMBERS = grammar_of(
    ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "integer"}}))
)


def add_group(rig: Rig, count: int, group: int = 1, prompt: list[int] = PROMPT, **fields: object) -> list[int]:
    """Sequences of one request; returns their keys."""
    sampling = SamplingParams(seed=group, temperature=1.0)
    fields = {"max_new": 10, "sampling": sampling, **fields}
    return [rig.add(prompt, index=index, group=group, **fields) for index in range(count)]  # type: ignore[arg-type]


def told(top: int | None) -> list[tuple[float, list[int]]]:
    """What is to be told of PROMPT."""
    return [] if top is None else expected_scores(PROMPT, top)


def prefilled(rig: Rig) -> int:
    """Tokens that were computed in rows of more than one."""
    return sum(tokens for rows in rig.runner.batches for _, tokens in rows if tokens > 1)


@pytest.mark.parametrize("fields", [{}, {"use_prefix_cache": False}, {"cache_salt": "mine"}])
@pytest.mark.parametrize("caching", [True, False])
def test_the_prompt_is_computed_once(fields: dict[str, Any], caching: bool) -> None:
    """But for what its last block holds, which each has as its own."""
    rig = Rig(num_blocks=200, max_batch=8, enable_prefix_cache=caching)
    add_group(rig, 6, **fields)
    rig.run()
    rig.assert_all_complete()
    assert prefilled(rig) <= len(PROMPT) + 5 * rig.plan.block_size
    assert len({tuple(tokens) for tokens in rig.tokens.values()}) == 6
    rig.assert_idle()


@pytest.mark.parametrize("kind", [Rig, DelayedRig])
@pytest.mark.parametrize(
    "fields",
    [{}, {"use_prefix_cache": False}, {"prompt_logprobs": 1}, {"grammar": NUMBERS, "eos_ids": (2,)}],
    ids=["", "without the cache", "told", "guided"],
)
@pytest.mark.parametrize("length", [3, 17, 28, 30])
def test_what_follows_the_shared_part_is_equal_rows_of_one_step(
    length: int, fields: dict[str, Any], kind: type[Rig]
) -> None:
    """So are the rows of all steps after it."""
    rig = kind(num_blocks=200, max_batch=8)
    add_group(rig, 6, prompt=PROMPT[:length], **fields)
    rig.run()
    rig.assert_all_complete()
    shared = (length - 1) // 4 * 4
    prompt = [[(0, shared)]] * (shared > 0) + [[(shared, length - shared)] * 6]
    assert rig.runner.batches[: len(prompt)] == prompt
    assert all(len(set(rows)) == 1 for rows in rig.runner.batches)
    rig.assert_idle()


@pytest.mark.parametrize("kind", [Rig, DelayedRig])
def test_a_group_whose_prompt_is_cached_begins_together(kind: type[Rig]) -> None:
    rig = kind(num_blocks=200)
    rig.add(PROMPT)
    rig.run()
    rig.runner.batches.clear()
    keys = add_group(rig, 4)
    rig.run()
    rig.assert_all_complete()
    assert [rig.cached[key] for key in keys] == [28] * 4
    assert rig.runner.batches[0] == [(28, 2)] * 4


def test_a_leader_recomputing_cached_blocks_goes_on_with_others() -> None:
    """It tells of its prompt, so it may not begin with the cache."""
    rig = Rig(num_blocks=40)
    rig.add(PROMPT)
    rig.run()
    keys = add_group(rig, 4, prompt_logprobs=1)
    rig.steps(2)
    tables = [rig.core._scheduler.find(key).blocks[:7] for key in keys]  # type: ignore[union-attr]
    assert tables == tables[:1] * 4
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()


@pytest.mark.parametrize("kind", [Rig, DelayedRig])
def test_other_prompts_do_not_come_between_those_of_a_group(kind: type[Rig]) -> None:
    """Others that were under way before or after it, and new ones, leave what the group needs of the budget."""
    rig = kind(num_blocks=200, max_batch=8, max_prefill_tokens=24)
    rig.add(range(300, 360), 3)
    rig.step()
    add_group(rig, 4)
    rig.step()
    rig.add(range(400, 460), 3)
    rig.steps(2)
    rig.add(range(500, 560), 3)
    rig.run()
    rig.assert_all_complete()
    rest = [row for rows in rig.runner.batches for row in rows if row == (28, 2)]
    assert [rows.count((28, 2)) for rows in rig.runner.batches if (28, 2) in rows] == [4]
    assert len(rest) == 4
    rig.assert_idle()


@pytest.mark.parametrize("kind", [Rig, DelayedRig])
def test_a_higher_priority_request_precedes_unstarted_ones(kind: type[Rig]) -> None:
    """The leader goes on meanwhile: it holds blocks that the other request may need."""
    rig = kind(num_blocks=200, max_prefill_tokens=32)
    first, *others = add_group(rig, 4)
    rig.step()
    urgent = rig.add(range(300, 360), 3, priority=1)
    rig.run()
    rig.assert_all_complete()
    begun = [key for output in rig.outputs for key in (started.key for started in output.scheduled)]
    assert begun == [first, urgent, *others]
    rig.assert_idle()


def test_where_the_budget_is_too_small_for_all_the_others_follow() -> None:
    rig = Rig(num_blocks=200, max_prefill_tokens=5)
    add_group(rig, 4)
    rig.run()
    rig.assert_all_complete()
    rest = [rows for rows in rig.runner.batches if rows[-1][0] >= 28]
    assert rest[0] == [(28, 2), (28, 2), (28, 1)]
    rig.assert_idle()


def test_without_free_slots_the_leader_does_not_wait() -> None:
    rig = Rig(num_blocks=200, max_batch=2)
    other = rig.add(range(500, 510), 40)
    rig.step()
    keys = add_group(rig, 3, max_new=4)
    rig.run()
    rig.assert_all_complete()
    assert list(rig.ended) == [*keys, other]


def test_a_group_that_arrives_bit_by_bit_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(num_blocks=200)
    commands = rig.link.commands
    for index in range(4):
        rig.add(PROMPT[:3], index=index, group=1)
    commands[:] = in_common(list(rig.requests.values()))
    monkeypatch.setattr(rig.link, "receive", lambda block: [commands.pop(0)] if block or len(commands) == 4 else [])
    rig.steps(4)
    rig.assert_all_complete()
    assert rig.runner.batches[0] == [(0, 3)] * 4


def test_a_group_makes_tables_of_its_rules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(wraps=logit_state.BadWords)
    monkeypatch.setattr(logit_state, "BadWords", made)
    rig = Rig(num_blocks=200, max_batch=8)
    rules = LogitRules(bad_words=((7,), (8, 9)))
    for index in range(6):
        rig.add(PROMPT, index=index, group=1, rules=rules, sampling=SamplingParams(seed=1))
    rig.link.commands[:] = in_common(list(rig.requests.values()))
    rig.run()
    assert made.call_count == 1
    rig.assert_all_complete()


def test_requests_without_the_cache_share_with_nobody_else() -> None:
    rig = Rig(num_blocks=200)
    for group in (1, 2):
        add_group(rig, 2, group=group, use_prefix_cache=False)
    rig.run()
    rig.assert_all_complete()
    assert prefilled(rig) >= 2 * len(PROMPT)


@pytest.mark.parametrize("host_blocks", [0, 32])
def test_uncached_requests_share_without_filling_the_cache(host_blocks: int) -> None:
    """As many as fill the pool ten times leave what others cached where it is, and the host tier empty."""
    rig = Rig(num_blocks=64, num_host_blocks=host_blocks)
    rig.add(PROMPT)
    rig.run()
    for group in range(1, 21):
        add_group(rig, 3, group=group, prompt=[group + 200, *PROMPT], use_prefix_cache=False)
        rig.run()
    again = rig.add(PROMPT)
    rig.run()
    assert rig.cached[again] == len(PROMPT) // rig.plan.block_size * rig.plan.block_size
    assert rig.stat.pool.host_blocks_used == 0
    rig.assert_all_complete()
    rig.assert_idle()


def test_a_group_goes_on_when_its_prompts_computer_is_stopped() -> None:
    rig = Rig(num_blocks=200, max_prefill_tokens=8)
    first, *others = add_group(rig, 4)
    rig.steps(2)
    assert rig.stat.running == 1
    rig.end(first)
    rig.end(others.pop())
    rig.run()
    assert all(rig.is_complete(key) for key in others)
    rig.assert_idle()


def test_all_of_a_group_can_be_ended_before_it_begins() -> None:
    rig = Rig(num_blocks=200, max_prefill_tokens=8)
    keys = add_group(rig, 4)
    rig.steps(1)
    for key in reversed(keys):
        rig.end(key)
    rig.run()
    assert all(not rig.tokens[key] for key in keys)
    rig.assert_idle()


def test_guided_sequences_share_a_prompt_too() -> None:
    rig = Rig(num_blocks=200)
    add_group(rig, 4, grammar=NUMBERS, eos_ids=(2,))
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()


def test_a_failing_step_costs_those_that_fail_alone() -> None:
    rig = Rig(num_blocks=200)
    keys = add_group(rig, 3)
    rig.runner.raises = lambda step: step.index == 0 and len(step.token_ids) > 1
    rig.run()
    assert rig.ended[keys[0]].error
    assert all(rig.is_complete(key) for key in keys[1:])
    rig.assert_idle()


def test_what_a_leader_can_tell_no_more_another_one_tells() -> None:
    """Also one that has computed all of the prompt, and drawn from it."""
    rig = Rig(num_blocks=200)
    first, *others = add_group(rig, 3, prompt_logprobs=1)
    rig.runner.raises = lambda step: step.index == 0 and step.start == 28
    rig.run()
    assert rig.ended[first].error
    assert all(rig.is_complete(key) for key in others)
    assert rig.prompt_logprobs == {first: told(1)[:28], others[0]: told(1)}
    rig.assert_idle()


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30), st.booleans()), min_size=1, max_size=4),
    num_blocks=st.integers(16, 60),
    budget=st.integers(8, 40),
    failing=st.integers(-1, 3),
    policy=st.sampled_from(InterruptPolicy),
    kind=st.sampled_from([Rig, DelayedRig]),
)
def test_whatever_happens_a_prompt_is_told(
    groups: list[tuple[int, int, bool]],
    num_blocks: int,
    budget: int,
    failing: int,
    policy: InterruptPolicy,
    kind: type[Rig],
) -> None:
    """Once, unless one that was telling it has ended; to its end, unless all have."""
    rig = kind(num_blocks=num_blocks, max_prefill_tokens=budget)
    rig.runner.raises = lambda step: step.index == failing and step.start > 9
    for number, (count, length, asks) in enumerate(groups, 1):
        fields: dict[str, Any] = {"prompt_logprobs": 1} if asks else {}
        add_group(rig, count, number, PROMPT[:length], max_new=12, interrupt_policy=policy, **fields)
        rig.step()
    rig.run()
    for request in rig.requests.values():
        others = [key for key, other in rig.requests.items() if other.group == request.group]
        tellers = [rig.prompt_logprobs[key] for key in others if key in rig.prompt_logprobs]
        whole = told(request.prompt_logprobs)[: len(request.prompt) - 1]
        if rig.is_complete(request.key) and whole:
            assert max(tellers, key=len) == whole
        assert all(teller == whole[: len(teller)] for teller in tellers)
        assert sum(teller == whole for teller in tellers) <= 1 or not whole
    rig.assert_idle()


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=4),
    num_blocks=st.integers(16, 40),
    policy=st.sampled_from(InterruptPolicy),
    stopped=st.sets(st.integers(1, 20)),
)
def test_whatever_happens_the_blocks_add_up(
    groups: list[tuple[int, int]], num_blocks: int, policy: InterruptPolicy, stopped: set[int]
) -> None:
    rig = Rig(num_blocks=num_blocks, max_prefill_tokens=8)
    keys: list[int] = []
    for group, (count, length) in enumerate(groups, 1):
        prompt = [group] * length
        keys += add_group(rig, count, group=group, prompt=prompt, max_new=12, interrupt_policy=policy)
    rig.steps(3)
    for key in stopped.intersection(keys):
        rig.end(key)
    rig.run()
    if policy is InterruptPolicy.RESUME:
        assert all(rig.is_complete(key) for key in keys if key not in stopped)
    rig.assert_idle()
