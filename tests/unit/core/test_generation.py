"""Every sequence gets the ids that it gets alone, whatever else runs, however it is cut and put back."""

from __future__ import annotations

import random

import pytest
from headrace_engine.generation_config import SamplingParams
from unit.core.bench import Bench
from unit.core.conftest import MakeBench
from unit.core.simulated import expected

B = 4


def prompt(seed: int, length: int) -> list[int]:
    """Ids that no other seed resembles."""
    return [random.Random(f"{seed}:{i}").randrange(1000) for i in range(length)]


@pytest.mark.parametrize("chunk", [1, 2, 3, B - 1, B, B + 1, 3 * B + 4, 3 * B + 5, 1000])
@pytest.mark.parametrize("cached", [False, True])
def test_bc097_a_prompt_cut_in_chunks_of_any_size_gives_the_same_ids(
    make_bench: MakeBench, chunk: int, cached: bool
) -> None:
    bench = make_bench(max_prefill_tokens=chunk)
    ids = prompt(1, 3 * B + 5)
    if cached:
        bench.add(ids[: 2 * B + 1], 1)
        bench.run()
    key = bench.add(ids, 32)
    bench.run()
    bench.assert_all_complete()
    assert bench.cached[key] == (2 * B if cached else 0)
    assert max(count for rows in bench.runner.batches for _, count in rows) <= chunk


def test_chunks_take_the_budget_that_generations_leave(make_bench: MakeBench) -> None:
    bench = make_bench(max_prefill_tokens=8)
    bench.add(prompt(1, 3), 20)
    bench.add(prompt(2, 2), 20)
    bench.step()
    bench.add(prompt(3, 20), 4)
    bench.steps(3)
    assert bench.runner.batches[1:] == [
        [(3, 1), (2, 1), (0, 6)],
        [(4, 1), (3, 1), (6, 6)],
        [(5, 1), (4, 1), (12, 6)],
    ]
    bench.run()
    bench.assert_all_complete()


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7])
def test_a_budget_below_max_batch_limits_how_many_run(make_bench: MakeBench, budget: int) -> None:
    """Each running sequence finds its token in each step, so none stands still."""
    bench = make_bench(max_batch=8, max_prefill_tokens=budget)
    for i in range(12):
        bench.add(prompt(i, 1 + i % 6), 6)
    while bench.core.busy or bench.link.commands:
        bench.step()
        assert bench.stat.running <= budget
    bench.assert_all_complete()


def test_seeds_positions_and_indexes_reach_the_runner(make_bench: MakeBench) -> None:
    bench = make_bench()
    for index in range(3):
        bench.add(prompt(1, 5), 6, sampling=SamplingParams(seed=9), index=index)
    bench.run()
    bench.assert_all_complete()
    assert len({tuple(ids) for ids in bench.tokens.values()}) == 3


def test_mixed_batches_change_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch=16, num_blocks=200)
    for i in range(40):
        bench.add(prompt(i, 1 + (7 * i) % 40), 1 + (5 * i) % 20)
        bench.steps(i % 3)
    bench.run()
    bench.assert_all_complete()


@pytest.mark.parametrize("caching", [True, False])
def test_bc092_preempted_sequences_lose_and_repeat_nothing(make_bench: MakeBench, caching: bool) -> None:
    """A pool that holds 3 of 8 sequences at their full length."""
    bench = make_bench(num_blocks=24, max_length=32, enable_prefix_cache=caching)
    for i in range(8):
        bench.add(prompt(i, 8), 24)
    bench.run()
    assert len(bench.preempted) >= 4, "the pool was large enough: nothing was tested"
    bench.assert_all_complete()


def test_bc092_the_same_with_sampling_and_chunks(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=18, max_length=64, max_prefill_tokens=9)
    for i in range(8):
        bench.add(prompt(i, 3 + 3 * i), 30, sampling=SamplingParams(seed=i))
    bench.run()
    assert bench.preempted
    bench.assert_all_complete()


def test_preemption_is_told_and_start_only_once(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16)
    for i in range(4):
        bench.add(prompt(i, 8), 24)
    bench.run()
    assert bench.preempted
    started = [item.key for output in bench.outputs for item in output.scheduled]
    assert sorted(started) == [1, 2, 3, 4]


def test_what_an_earlier_core_generated_is_not_generated_again(make_bench: MakeBench) -> None:
    """The ids go on at their position, and count for max_new."""
    bench = make_bench()
    whole = bench.add(prompt(1, 10), 12, sampling=SamplingParams(seed=3))
    bench.run()
    rest = bench.add(prompt(1, 10), 12, sampling=SamplingParams(seed=3), generated=tuple(bench.tokens[whole][:7]))
    bench.run()
    assert bench.tokens[rest] == bench.tokens[whole]
    assert sum(rest in output.keys for output in bench.outputs) == 5


@pytest.mark.parametrize("length", [B - 1, B, B + 1, 2 * B, 2 * B + 1])
def test_bc077_a_wholly_cached_prompt_computes_its_last_token(make_bench: MakeBench, length: int) -> None:
    bench = make_bench()
    for _ in range(3):
        bench.add(prompt(1, length), 6)
        bench.run()
    bench.assert_all_complete()
    assert list(bench.cached.values()) == [0, *[(length - 1) // B * B] * 2]


def test_bc083_the_next_turn_of_a_chat_finds_prompt_and_answer(make_bench: MakeBench) -> None:
    bench = make_bench()
    turn = prompt(1, 4 * B + 3)
    for known in (0, 6 * B, 9 * B):
        key = bench.add(turn, 2 * B)
        bench.run()
        assert bench.cached[key] == known
        turn = turn + bench.tokens[key] + prompt(len(turn), B)
    bench.assert_all_complete()


def test_a_sequence_that_objects_neither_reads_nor_fills_the_cache(make_bench: MakeBench) -> None:
    bench = make_bench()
    first = bench.add(prompt(1, 20), 4, use_prefix_cache=False)
    bench.run()
    assert bench.stat.blocks_cached == 0
    second = bench.add(prompt(1, 20), 4)
    bench.run()
    third = bench.add(prompt(1, 20), 4, use_prefix_cache=False)
    bench.run()
    fourth = bench.add(prompt(1, 20), 4)
    bench.run()
    assert [bench.cached[key] for key in (first, second, third, fourth)] == [0, 0, 0, 16]


def test_a_plan_without_prefix_cache_keeps_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(enable_prefix_cache=False)
    for _ in range(2):
        bench.add(prompt(1, 20), 4)
        bench.run()
    assert bench.cached == {1: 0, 2: 0}
    assert (bench.stat.blocks_cached, bench.stat.prefix_cache_hit_tokens) == (0, 0)


def test_salts_keep_requests_apart(make_bench: MakeBench) -> None:
    bench = make_bench()
    for salt in ("", "a", "b", "a"):
        bench.add(prompt(1, 20), 4, cache_salt=salt)
        bench.run()
    assert list(bench.cached.values()) == [0, 0, 0, 16]


def test_eviction_makes_room_and_wrong_blocks_for_nobody(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=20)
    for i in range(60):
        bench.add(prompt(i % 7 * (i % 2), 24 + i % 5), 8)
        bench.run()
    bench.assert_all_complete()
    assert bench.stat.blocks_free < 6
    assert bench.stat.prefix_cache_hit_tokens > 0


def test_sequences_that_share_a_prefix_share_its_blocks(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16)
    shared = prompt(1, 33)
    bench.add(shared, 1)
    bench.run()
    for i in range(6):
        bench.add([*shared, i], 3)
    bench.steps(2)
    assert bench.stat.running == 6
    assert bench.stat.blocks_used == 8 + 6
    bench.run()
    bench.assert_all_complete()


def test_counters_and_gauges(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(prompt(1, 20), 4)
    bench.run()
    bench.add(prompt(1, 20), 4)
    bench.run()
    stat = bench.stat
    assert (stat.prefix_cache_hit_tokens, stat.prefix_cache_miss_tokens) == (16, 24)
    assert (stat.prefilled_tokens, stat.generated_tokens) == (24, 8)
    assert (stat.running, stat.waiting, stat.blocks_total, stat.blocks_used) == (0, 0, 64, 0)
    assert bench.first.stat.blocks_free == 64
    assert bench.outputs[0].batch_size == 1
    assert bench.outputs[0].stat.running == 1
    assert all(output.step_time >= 0 for output in bench.outputs)


def test_one_output_a_step_whatever_the_batch(make_bench: MakeBench) -> None:
    bench = make_bench()
    for i in range(8):
        bench.add(prompt(i, 3), 5)
    bench.run()
    assert len(bench.outputs) == len(bench.runner.batches) == 5
    assert [output.batch_size for output in bench.outputs] == [8] * 5


def test_who_is_in_a_step_is_told_where_it_changes(make_bench: MakeBench) -> None:
    bench = make_bench()
    first = bench.add(prompt(1, 3), 5)
    bench.steps(2)
    second = bench.add(prompt(2, 3), 2)
    bench.run()
    assert bench.begun == [[first], [first, second], [first]]


def test_logprobs_come_where_they_were_asked_for(make_bench: MakeBench) -> None:
    bench = make_bench()
    plain = bench.add(prompt(1, 3), 2)
    bench.run()
    assert all(output.logprobs == [] for output in bench.outputs)
    asked = bench.add(prompt(2, 3), 2, sampling=SamplingParams(logprobs=True))
    other = bench.add(prompt(3, 3), 2)
    bench.step()
    output = bench.outputs[-1]
    values = dict(zip(output.keys, output.logprobs, strict=True))
    assert values[asked] == -bench.tokens[asked][0]
    assert values[other] != values[other]
    assert plain not in values


def test_bc091_500_mixed_requests_leave_the_pool_as_it_was(make_bench: MakeBench) -> None:
    """Random lengths, shared prefixes, priorities, a third stopped midway: then a sequence of full length runs."""
    bench = make_bench(max_batch=12, num_blocks=40, max_prefill_tokens=24)
    randomness = random.Random(5)
    stopped = _mixed_load(bench, randomness, 500)
    bench.run()
    complete = [key for key in bench.requests if key not in stopped]
    assert all(bench.is_complete(key) for key in complete)
    assert all(bench.tokens[key] == expected(bench.requests[key])[: len(bench.tokens[key])] for key in stopped)
    assert bench.preempted
    assert bench.stat.blocks_used == 0
    bench.core.check_books()
    key = bench.add(prompt(7777, 40), 24)
    bench.run()
    assert bench.is_complete(key)


def _mixed_load(bench: Bench, randomness: random.Random, count: int) -> set[int]:
    stopped = set()
    for i in range(count):
        length = randomness.choice([1, 3, 4, 5, 12, 30, 47])
        key = bench.add(
            prompt(randomness.randrange(20), length),
            randomness.randint(1, 16),
            sampling=SamplingParams(seed=i, temperature=randomness.choice([0, 1])),
            priority=randomness.randrange(3),
            use_prefix_cache=randomness.random() < 0.9,
        )
        if randomness.random() < 0.3:
            stopped.add(key)
        bench.steps(randomness.randrange(3))
        for victim in [key for key in stopped if randomness.random() < 0.2]:
            bench.end(victim)
        if i % 50 == 0:
            bench.core.check_books()
    return stopped
