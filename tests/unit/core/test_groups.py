"""Sequences of one request compute their prompt once, go on from it together, and get what each gets alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace_engine.generation_config import InterruptPolicy, ResponseFormat, ResponseFormatKind, SamplingParams
from headrace_engine.guided.grammar import grammar_of
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.core.bench import Bench
from unit.core.delayed_runner import DelayedBench
from unit.core.simulated import expected_scores

PROMPT = list(range(100, 130))
NUMBERS = grammar_of(
    ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "integer"}}))
)


def add_group(bench: Bench, count: int, group: int = 1, prompt: list[int] = PROMPT, **fields: object) -> list[int]:
    """Sequences of one request; returns their keys."""
    sampling = SamplingParams(seed=group, temperature=1.0)
    fields = {"max_new": 10, "sampling": sampling, **fields}
    return [bench.add(prompt, index=index, group=group, **fields) for index in range(count)]  # type: ignore[arg-type]


def told(top: int | None) -> list[tuple[float, list[int]]]:
    """What is to be told of PROMPT."""
    return [] if top is None else expected_scores(PROMPT, top)


def prefilled(bench: Bench) -> int:
    """Tokens that were computed in rows of more than one."""
    return sum(tokens for rows in bench.runner.batches for _, tokens in rows if tokens > 1)


@pytest.mark.parametrize("fields", [{}, {"use_prefix_cache": False}, {"cache_salt": "mine"}])
@pytest.mark.parametrize("caching", [True, False])
def test_the_prompt_is_computed_once(fields: dict[str, Any], caching: bool) -> None:
    """But for what its last block holds, which each has as its own."""
    bench = Bench(num_blocks=200, max_batch=8, enable_prefix_cache=caching)
    add_group(bench, 6, **fields)
    bench.run()
    bench.assert_all_complete()
    assert prefilled(bench) <= len(PROMPT) + 5 * bench.plan.block_size
    assert len({tuple(tokens) for tokens in bench.tokens.values()}) == 6
    bench.assert_idle()


@pytest.mark.parametrize("kind", [Bench, DelayedBench])
@pytest.mark.parametrize(
    "fields",
    [{}, {"use_prefix_cache": False}, {"prompt_logprobs": 1}, {"grammar": NUMBERS, "eos_ids": (2,)}],
    ids=["", "without the cache", "told", "guided"],
)
@pytest.mark.parametrize("length", [3, 17, 28, 30])
def test_what_follows_the_shared_part_is_equal_rows_of_one_step(
    length: int, fields: dict[str, Any], kind: type[Bench]
) -> None:
    """So are the rows of all steps after it."""
    bench = kind(num_blocks=200, max_batch=8)
    add_group(bench, 6, prompt=PROMPT[:length], **fields)
    bench.run()
    bench.assert_all_complete()
    shared = (length - 1) // 4 * 4
    prompt = [[(0, shared)]] * (shared > 0) + [[(shared, length - shared)] * 6]
    assert bench.runner.batches[: len(prompt)] == prompt
    assert all(len(set(rows)) == 1 for rows in bench.runner.batches)
    bench.assert_idle()


@pytest.mark.parametrize("kind", [Bench, DelayedBench])
def test_a_group_whose_prompt_is_cached_begins_together(kind: type[Bench]) -> None:
    bench = kind(num_blocks=200)
    bench.add(PROMPT)
    bench.run()
    bench.runner.batches.clear()
    keys = add_group(bench, 4)
    bench.run()
    bench.assert_all_complete()
    assert [bench.cached[key] for key in keys] == [28] * 4
    assert bench.runner.batches[0] == [(28, 2)] * 4


def test_a_leader_that_computes_what_was_cached_goes_on_with_what_the_others_find() -> None:
    """It tells of its prompt, so it may not begin with the cache."""
    bench = Bench(num_blocks=40)
    bench.add(PROMPT)
    bench.run()
    keys = add_group(bench, 4, prompt_logprobs=1)
    bench.steps(2)
    tables = [bench.core._scheduler.find(key).blocks[:7] for key in keys]  # type: ignore[union-attr]
    assert tables == tables[:1] * 4
    bench.run()
    bench.assert_all_complete()
    bench.assert_idle()


@pytest.mark.parametrize("kind", [Bench, DelayedBench])
def test_other_prompts_do_not_come_between_those_of_a_group(kind: type[Bench]) -> None:
    """Others that were under way before or after it, and new ones, leave what the group needs of the budget."""
    bench = kind(num_blocks=200, max_batch=8, max_prefill_tokens=24)
    bench.add(range(300, 360), 3)
    bench.step()
    add_group(bench, 4)
    bench.step()
    bench.add(range(400, 460), 3)
    bench.steps(2)
    bench.add(range(500, 560), 3)
    bench.run()
    bench.assert_all_complete()
    rest = [row for rows in bench.runner.batches for row in rows if row == (28, 2)]
    assert [rows.count((28, 2)) for rows in bench.runner.batches if (28, 2) in rows] == [4]
    assert len(rest) == 4
    bench.assert_idle()


@pytest.mark.parametrize("kind", [Bench, DelayedBench])
def test_a_request_of_a_higher_priority_comes_before_those_that_have_not_begun(kind: type[Bench]) -> None:
    """The leader goes on meanwhile: it holds blocks that the other request may need."""
    bench = kind(num_blocks=200, max_prefill_tokens=32)
    first, *others = add_group(bench, 4)
    bench.step()
    urgent = bench.add(range(300, 360), 3, priority=1)
    bench.run()
    bench.assert_all_complete()
    begun = [key for output in bench.outputs for key in (started.key for started in output.scheduled)]
    assert begun == [first, urgent, *others]
    bench.assert_idle()


def test_where_the_budget_is_too_small_for_all_the_others_follow() -> None:
    bench = Bench(num_blocks=200, max_prefill_tokens=5)
    add_group(bench, 4)
    bench.run()
    bench.assert_all_complete()
    rest = [rows for rows in bench.runner.batches if rows[-1][0] >= 28]
    assert rest[0] == [(28, 2), (28, 2), (28, 1)]
    bench.assert_idle()


def test_where_places_are_missing_the_leader_does_not_wait_for_them() -> None:
    bench = Bench(num_blocks=200, max_batch=2)
    other = bench.add(range(500, 510), 40)
    bench.step()
    keys = add_group(bench, 3, max_new=4)
    bench.run()
    bench.assert_all_complete()
    assert list(bench.ended) == [*keys, other]


def test_a_group_that_arrives_bit_by_bit_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(num_blocks=200)
    commands = bench.link.commands
    for index in range(4):
        bench.add(PROMPT[:3], index=index, group=1, more=index < 3)
    monkeypatch.setattr(bench.link, "receive", lambda block: [commands.pop(0)] if block or len(commands) == 4 else [])
    bench.steps(4)
    bench.assert_all_complete()
    assert bench.runner.batches[0] == [(0, 3)] * 4


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


def test_what_a_leader_can_tell_no_more_another_one_tells() -> None:
    """Also one that has computed all of the prompt, and drawn from it."""
    bench = Bench(num_blocks=200)
    first, *others = add_group(bench, 3, prompt_logprobs=1)
    bench.runner.raises = lambda step: step.index == 0 and step.start == 28
    bench.run()
    assert bench.ended[first].error
    assert all(bench.is_complete(key) for key in others)
    assert bench.scored == {first: told(1)[:28], others[0]: told(1)}
    bench.assert_idle()


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30), st.booleans()), min_size=1, max_size=4),
    num_blocks=st.integers(16, 60),
    budget=st.integers(8, 40),
    failing=st.integers(-1, 3),
    policy=st.sampled_from(InterruptPolicy),
    kind=st.sampled_from([Bench, DelayedBench]),
)
def test_whatever_happens_a_prompt_is_told(
    groups: list[tuple[int, int, bool]],
    num_blocks: int,
    budget: int,
    failing: int,
    policy: InterruptPolicy,
    kind: type[Bench],
) -> None:
    """Once, unless one that was telling it has ended; to its end, unless all have."""
    bench = kind(num_blocks=num_blocks, max_prefill_tokens=budget)
    bench.runner.raises = lambda step: step.index == failing and step.start > 9
    for number, (count, length, asks) in enumerate(groups, 1):
        fields: dict[str, Any] = {"prompt_logprobs": 1} if asks else {}
        add_group(bench, count, number, PROMPT[:length], max_new=12, interrupt_policy=policy, **fields)
        bench.step()
    bench.run()
    for request in bench.requests.values():
        others = [key for key, other in bench.requests.items() if other.group == request.group]
        tellers = [bench.scored[key] for key in others if key in bench.scored]
        whole = told(request.prompt_logprobs)[: len(request.prompt) - 1]
        if bench.is_complete(request.key) and whole:
            assert max(tellers, key=len) == whole
        assert all(teller == whole[: len(teller)] for teller in tellers)
        assert sum(teller == whole for teller in tellers) <= 1 or not whole
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
