"""Sequences of one request compute their prompt once, and get what each gets alone."""

from __future__ import annotations

import json

import pytest
from headrace_engine.config import InterruptPolicy, ResponseFormat, ResponseFormatKind, SamplingParams
from headrace_engine.guided.grammar import grammar_of
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.core.simulated import Bench

PROMPT = list(range(100, 130))
NUMBERS = grammar_of(
    ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "integer"}}))
)


def add_group(bench: Bench, count: int, group: int = 1, prompt: list[int] = PROMPT, **fields: object) -> list[int]:
    """Sequences of one request; returns their keys."""
    sampling = SamplingParams(seed=group, temperature=1.0)
    fields = {"max_new": 10, "sampling": sampling, **fields}
    return [bench.add(prompt, index=index, group=group, **fields) for index in range(count)]  # type: ignore[arg-type]


def prefilled(bench: Bench) -> int:
    """Tokens that were computed in rows of more than one."""
    return sum(tokens for rows in bench.runner.batches for _, tokens in rows if tokens > 1)


@pytest.mark.parametrize("fields", [{}, {"use_prefix_cache": False}, {"cache_salt": "mine"}])
@pytest.mark.parametrize("caching", [True, False])
def test_the_prompt_is_computed_once(fields: dict[str, object], caching: bool) -> None:
    """But for what its last block holds, which each has as its own."""
    bench = Bench(num_blocks=200, max_batch=8, enable_prefix_cache=caching)
    add_group(bench, 6, **fields)
    bench.run()
    bench.assert_all_complete()
    assert prefilled(bench) <= len(PROMPT) + 5 * bench.plan.block_size
    assert len({tuple(tokens) for tokens in bench.tokens.values()}) == 6
    bench.assert_idle()


def test_requests_without_the_cache_share_with_nobody_else() -> None:
    bench = Bench(num_blocks=200)
    for group in (1, 2):
        add_group(bench, 2, group=group, use_prefix_cache=False)
    bench.run()
    bench.assert_all_complete()
    assert prefilled(bench) >= 2 * len(PROMPT)


@pytest.mark.parametrize("host_blocks", [0, 32])
def test_what_requests_without_the_cache_share_takes_no_room_in_it(host_blocks: int) -> None:
    """As many as fill the pool ten times leave what others cached where it is, and the host tier empty."""
    bench = Bench(num_blocks=64, num_host_blocks=host_blocks)
    bench.add(PROMPT)
    bench.run()
    for group in range(1, 21):
        add_group(bench, 3, group=group, prompt=[group + 200, *PROMPT], use_prefix_cache=False)
        bench.run()
    again = bench.add(PROMPT)
    bench.run()
    assert bench.cached[again] == len(PROMPT) // bench.plan.block_size * bench.plan.block_size
    assert bench.stat.host_blocks_used == 0
    bench.assert_all_complete()
    bench.assert_idle()


def test_a_group_goes_on_when_the_one_that_computes_the_prompt_is_ended() -> None:
    bench = Bench(num_blocks=200, max_prefill_tokens=8)
    first, *others = add_group(bench, 4)
    bench.steps(2)
    assert bench.stat.running == 1
    bench.end(first)
    bench.end(others.pop())
    bench.run()
    assert all(bench.is_complete(key) for key in others)
    bench.assert_idle()


def test_all_of_a_group_can_be_ended_before_it_begins() -> None:
    bench = Bench(num_blocks=200, max_prefill_tokens=8)
    keys = add_group(bench, 4)
    bench.steps(1)
    for key in reversed(keys):
        bench.end(key)
    bench.run()
    assert all(not bench.tokens[key] for key in keys)
    bench.assert_idle()


def test_guided_sequences_share_a_prompt_too() -> None:
    bench = Bench(num_blocks=200)
    add_group(bench, 4, grammar=NUMBERS, eos_ids=(2,))
    bench.run()
    bench.assert_all_complete()
    bench.assert_idle()


def test_a_failing_step_costs_those_that_fail_alone() -> None:
    bench = Bench(num_blocks=200)
    keys = add_group(bench, 3)
    bench.runner.raises = lambda step: step.index == 0 and len(step.token_ids) > 1
    bench.run()
    assert bench.ended[keys[0]].error
    assert all(bench.is_complete(key) for key in keys[1:])
    bench.assert_idle()


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=4),
    num_blocks=st.integers(16, 40),
    policy=st.sampled_from(InterruptPolicy),
    stopped=st.sets(st.integers(1, 20)),
)
def test_whatever_happens_the_books_balance(
    groups: list[tuple[int, int]], num_blocks: int, policy: InterruptPolicy, stopped: set[int]
) -> None:
    bench = Bench(num_blocks=num_blocks, max_prefill_tokens=8)
    keys: list[int] = []
    for group, (count, length) in enumerate(groups, 1):
        prompt = [group] * length
        keys += add_group(bench, count, group=group, prompt=prompt, max_new=12, interrupt_policy=policy)
    bench.steps(3)
    for key in stopped.intersection(keys):
        bench.end(key)
    bench.run()
    if policy is InterruptPolicy.RESUME:
        assert all(bench.is_complete(key) for key in keys if key not in stopped)
    bench.assert_idle()
