"""Every sequence gets the ids that it gets alone, whatever else runs, however it is cut and put back."""

from __future__ import annotations

import random

import pytest
from headrace_engine.sampling_params import SamplingParams
from support.core.rig import Rig
from support.core.simulated import expected
from unit.core.conftest import MakeRig

B = 4


def prompt(seed: int, length: int) -> list[int]:
    """Ids that no other seed resembles."""
    return [random.Random(f"{seed}:{i}").randrange(1000) for i in range(length)]


@pytest.mark.parametrize("chunk", [1, 2, 3, B - 1, B, B + 1, 3 * B + 4, 3 * B + 5, 1000])
@pytest.mark.parametrize("cached", [False, True])
def test_bc097_chunks_of_any_size_give_the_same_ids(make_rig: MakeRig, chunk: int, cached: bool) -> None:
    rig = make_rig(max_prefill_tokens=chunk)
    ids = prompt(1, 3 * B + 5)
    if cached:
        rig.add(ids[: 2 * B + 1], 1)
        rig.run()
    key = rig.add(ids, 32)
    rig.run()
    rig.assert_all_complete()
    assert rig.cached[key] == (2 * B if cached else 0)
    assert max(count for rows in rig.runner.batches for _, count in rows) <= chunk


def test_chunks_take_the_budget_that_generations_leave(make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=8)
    rig.add(prompt(1, 3), 20)
    rig.add(prompt(2, 2), 20)
    rig.step()
    rig.add(prompt(3, 20), 4)
    rig.steps(3)
    assert rig.runner.batches[1:] == [
        [(3, 1), (2, 1), (0, 6)],
        [(4, 1), (3, 1), (6, 6)],
        [(5, 1), (4, 1), (12, 6)],
    ]
    rig.run()
    rig.assert_all_complete()


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7])
def test_a_budget_below_max_batch_limits_how_many_run(make_rig: MakeRig, budget: int) -> None:
    """Each running sequence finds its token in each step, so none stands still."""
    rig = make_rig(max_batch=8, max_prefill_tokens=budget)
    for i in range(12):
        rig.add(prompt(i, 1 + i % 6), 6)
    while rig.core.busy or rig.link.commands:
        rig.step()
        assert rig.stat.running <= budget
    rig.assert_all_complete()


def test_seeds_positions_and_indexes_reach_the_runner(make_rig: MakeRig) -> None:
    rig = make_rig()
    for index in range(3):
        rig.add(prompt(1, 5), 6, sampling=SamplingParams(seed=9), index=index)
    rig.run()
    rig.assert_all_complete()
    assert len({tuple(ids) for ids in rig.tokens.values()}) == 3


def test_mixed_batches_change_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=16, num_blocks=200)
    for i in range(40):
        rig.add(prompt(i, 1 + (7 * i) % 40), 1 + (5 * i) % 20)
        rig.steps(i % 3)
    rig.run()
    rig.assert_all_complete()


@pytest.mark.parametrize("caching", [True, False])
def test_bc092_preempted_sequences_lose_and_repeat_nothing(make_rig: MakeRig, caching: bool) -> None:
    """A pool that holds 3 of 8 sequences at their full length."""
    rig = make_rig(num_blocks=24, max_length=32, enable_prefix_cache=caching)
    for i in range(8):
        rig.add(prompt(i, 8), 24)
    rig.run()
    assert len(rig.preempted) >= 4, "the pool was large enough: nothing was tested"
    rig.assert_all_complete()


def test_bc092_the_same_with_sampling_and_chunks(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=18, max_length=64, max_prefill_tokens=9)
    for i in range(8):
        rig.add(prompt(i, 3 + 3 * i), 30, sampling=SamplingParams(seed=i))
    rig.run()
    assert rig.preempted
    rig.assert_all_complete()


def test_preemption_is_told_and_start_only_once(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16)
    for i in range(4):
        rig.add(prompt(i, 8), 24)
    rig.run()
    assert rig.preempted
    started = [item.key for output in rig.outputs for item in output.scheduled]
    assert sorted(started) == [1, 2, 3, 4]


def test_what_an_earlier_core_generated_is_not_generated_again(make_rig: MakeRig) -> None:
    """The ids go on at their position, and count for max_new."""
    rig = make_rig()
    whole = rig.add(prompt(1, 10), 12, sampling=SamplingParams(seed=3))
    rig.run()
    rest = rig.add(prompt(1, 10), 12, sampling=SamplingParams(seed=3), generated=tuple(rig.tokens[whole][:7]))
    rig.run()
    assert rig.tokens[rest] == rig.tokens[whole]
    assert sum(rest in output.keys for output in rig.outputs) == 5


@pytest.mark.parametrize("length", [B - 1, B, B + 1, 2 * B, 2 * B + 1])
def test_bc077_a_wholly_cached_prompt_computes_its_last_token(make_rig: MakeRig, length: int) -> None:
    rig = make_rig()
    for _ in range(3):
        rig.add(prompt(1, length), 6)
        rig.run()
    rig.assert_all_complete()
    assert list(rig.cached.values()) == [0, *[(length - 1) // B * B] * 2]


def test_bc083_the_next_turn_of_a_chat_finds_prompt_and_answer(make_rig: MakeRig) -> None:
    rig = make_rig()
    turn = prompt(1, 4 * B + 3)
    for known in (0, 6 * B, 9 * B):
        key = rig.add(turn, 2 * B)
        rig.run()
        assert rig.cached[key] == known
        turn = turn + rig.tokens[key] + prompt(len(turn), B)
    rig.assert_all_complete()


def test_an_opted_out_sequence_neither_reads_nor_fills_the_cache(make_rig: MakeRig) -> None:
    rig = make_rig()
    first = rig.add(prompt(1, 20), 4, use_prefix_cache=False)
    rig.run()
    assert rig.stat.pool.blocks_cached == 0
    second = rig.add(prompt(1, 20), 4)
    rig.run()
    third = rig.add(prompt(1, 20), 4, use_prefix_cache=False)
    rig.run()
    fourth = rig.add(prompt(1, 20), 4)
    rig.run()
    assert [rig.cached[key] for key in (first, second, third, fourth)] == [0, 0, 0, 16]


def test_a_plan_without_prefix_cache_keeps_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(enable_prefix_cache=False)
    for _ in range(2):
        rig.add(prompt(1, 20), 4)
        rig.run()
    assert rig.cached == {1: 0, 2: 0}
    assert (rig.stat.pool.blocks_cached, rig.stat.counters.prefix_cache_hit_tokens) == (0, 0)


def test_salts_keep_requests_apart(make_rig: MakeRig) -> None:
    rig = make_rig()
    for salt in ("", "a", "b", "a"):
        rig.add(prompt(1, 20), 4, cache_salt=salt)
        rig.run()
    assert list(rig.cached.values()) == [0, 0, 0, 16]


def test_eviction_makes_room_and_wrong_blocks_for_nobody(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=20)
    for i in range(60):
        rig.add(prompt(i % 7 * (i % 2), 24 + i % 5), 8)
        rig.run()
    rig.assert_all_complete()
    assert rig.stat.pool.blocks_free < 6
    assert rig.stat.counters.prefix_cache_hit_tokens > 0


def test_sequences_that_share_a_prefix_share_its_blocks(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16)
    shared = prompt(1, 33)
    rig.add(shared, 1)
    rig.run()
    for i in range(6):
        rig.add([*shared, i], 3)
    rig.steps(2)
    assert rig.stat.running == 6
    assert rig.stat.pool.blocks_used == 8 + 6
    rig.run()
    rig.assert_all_complete()


def test_counters_and_gauges(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add(prompt(1, 20), 4)
    rig.run()
    rig.add(prompt(1, 20), 4)
    rig.run()
    stat = rig.stat
    assert (stat.counters.prefix_cache_hit_tokens, stat.counters.prefix_cache_miss_tokens) == (16, 24)
    assert (stat.counters.prefilled_tokens, stat.counters.generated_tokens) == (24, 8)
    assert (stat.running, stat.waiting, stat.pool.blocks_total, stat.pool.blocks_used) == (0, 0, 64, 0)
    assert rig.first.stat.pool.blocks_free == 64
    assert rig.outputs[0].batch_size == 1
    assert rig.outputs[0].stat.running == 1
    assert all(output.step_time >= 0 for output in rig.outputs)


def test_one_output_a_step_whatever_the_batch(make_rig: MakeRig) -> None:
    rig = make_rig()
    for i in range(8):
        rig.add(prompt(i, 3), 5)
    rig.run()
    assert len(rig.outputs) == len(rig.runner.batches) == 5
    assert [output.batch_size for output in rig.outputs] == [8] * 5


def test_who_is_in_a_step_is_told_where_it_changes(make_rig: MakeRig) -> None:
    rig = make_rig()
    first = rig.add(prompt(1, 3), 5)
    rig.steps(2)
    second = rig.add(prompt(2, 3), 2)
    rig.run()
    assert rig.begun == [[first], [first, second], [first]]


def test_logprobs_come_where_they_were_asked_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    plain = rig.add(prompt(1, 3), 2)
    rig.run()
    assert all(output.logprobs == [] for output in rig.outputs)
    asked = rig.add(prompt(2, 3), 2, sampling=SamplingParams(logprobs=True))
    other = rig.add(prompt(3, 3), 2)
    rig.step()
    output = rig.outputs[-1]
    values = dict(zip(output.keys, output.logprobs, strict=True))
    assert values[asked] == -rig.tokens[asked][0]
    assert values[other] != values[other]
    assert plain not in values


def test_bc091_500_mixed_requests_leave_the_pool_as_it_was(make_rig: MakeRig) -> None:
    """Random lengths, shared prefixes, priorities, a third stopped midway: then a sequence of full length runs."""
    rig = make_rig(max_batch=12, num_blocks=40, max_prefill_tokens=24)
    randomness = random.Random(5)
    stopped = _mixed_load(rig, randomness, 500)
    rig.run()
    complete = [key for key in rig.requests if key not in stopped]
    assert all(rig.is_complete(key) for key in complete)
    assert all(rig.tokens[key] == expected(rig.requests[key])[: len(rig.tokens[key])] for key in stopped)
    assert rig.preempted
    assert rig.stat.pool.blocks_used == 0
    rig.core.check_integrity()
    key = rig.add(prompt(7777, 40), 24)
    rig.run()
    assert rig.is_complete(key)


def _mixed_load(rig: Rig, randomness: random.Random, count: int) -> set[int]:
    stopped = set()
    for i in range(count):
        length = randomness.choice([1, 3, 4, 5, 12, 30, 47])
        key = rig.add(
            prompt(randomness.randrange(20), length),
            randomness.randint(1, 16),
            sampling=SamplingParams(seed=i, temperature=randomness.choice([0, 1])),
            priority=randomness.randrange(3),
            use_prefix_cache=randomness.random() < 0.9,
        )
        if randomness.random() < 0.3:
            stopped.add(key)
        rig.steps(randomness.randrange(3))
        for victim in [key for key in stopped if randomness.random() < 0.2]:
            rig.end(victim)
        if i % 50 == 0:
            rig.core.check_integrity()
    return stopped
