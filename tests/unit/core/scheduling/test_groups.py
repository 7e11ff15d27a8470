"""Sequences of one request compute their prompt once, go on from it together, and get what each gets alone."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from headrace_engine.core.scheduling import logit_state
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.ipc.commands import in_common
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.sampling_params import LogitRules, SamplingParams
from support.core.delayed_runner import DelayedRig
from support.core.rig import Rig
from support.core.simulated import expected_scores
from unit.core.scheduling.grouped import PROMPT, add_group

NUMBERS = grammar_of(
    ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "integer"}}))
)


def prompt_rows(top: int | None) -> list[tuple[float, list[int]]]:
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


def test_guided_sequences_share_a_prompt_too() -> None:
    rig = Rig(num_blocks=200)
    add_group(rig, 4, grammar=NUMBERS, eos_ids=(2,))
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()
