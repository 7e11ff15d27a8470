"""The host tier: what the pool evicts comes back from host memory, right, told as it is, and never after its time."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from headrace_engine.core import prefix_cache
from headrace_engine.core.block_pool import BlockPool, BooksError
from headrace_engine.core.executor import StepFailed
from headrace_engine.core.host_tier import HostTier
from headrace_engine.core.prefix_cache import Cursor, PrefixCache, Scope
from headrace_engine.result_types import FinishReason
from unit.core.bench import Bench
from unit.core.conftest import MakeBench
from unit.core.simulated import score
from unit.core.test_prefix_cache import fill

B = 4
BLOCKS = 16
"""The smallest pool for the bench's longest sequence."""
PROMPT = list(range(1, 12))
"""Two full blocks of four, and three ids more."""
SCOPE = Scope(revision="r")


def crowd_out(bench: Bench, first: int = 500) -> None:
    """Let another sequence take the whole pool and leave."""
    bench.add(range(first, first + 4 * (BLOCKS - 1)), 3)
    bench.run()


def ask(bench: Bench, prompt: Iterable[int] = PROMPT, **fields: object) -> tuple[int, int]:
    """Tokens of a prompt that came from the pool, and from host memory; its answer is right."""
    key = bench.add(tuple(prompt), **fields)
    bench.run()
    assert bench.is_complete(key)
    return bench.cached[key] - bench.fetched[key], bench.fetched[key]


def test_an_evicted_prefix_comes_back_from_host_memory(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    assert ask(bench) == (0, 0)
    assert ask(bench) == (8, 0)
    crowd_out(bench)
    bench.runner.seen.clear()
    assert ask(bench) == (0, 8)
    assert bench.runner.seen.isdisjoint(PROMPT[:8]), "what was copied was computed as well"
    assert ask(bench) == (8, 0)
    bench.assert_all_complete()


def test_without_host_blocks_it_is_computed_again_and_nothing_is_copied(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS)
    ask(bench)
    crowd_out(bench)
    assert ask(bench) == (0, 0)
    assert bench.runner.copied == []


def test_a_prefix_may_lie_in_both_tiers(make_bench: MakeBench) -> None:
    """Eviction begins with the tail."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    prompt = range(100, 149)
    ask(bench, prompt)
    ask(bench, range(300, 320))
    pool, host = ask(bench, prompt)
    assert pool > 0
    assert host > 0
    assert pool + host == 48
    assert ask(bench, range(100, 122)) == (20, 0)


def test_only_tokens_of_the_prompt_are_told_of(make_bench: MakeBench) -> None:
    """A sequence that an earlier core began finds its own ids as well: those are not the prompt's."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    key = bench.add(PROMPT[:6], 10)
    bench.run()
    crowd_out(bench)
    again = bench.add(PROMPT[:6], 12, generated=tuple(bench.tokens[key]))
    bench.run()
    assert (bench.cached[again], bench.fetched[again]) == (6, 6)
    assert bench.stat.prefix_cache_host_hit_tokens == 12


def test_statistics_tell_of_the_tier_and_its_hits(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    ask(bench)
    ask(bench)
    assert (bench.stat.host_blocks_total, bench.stat.host_blocks_used) == (32, 0)
    crowd_out(bench)
    assert bench.stat.host_blocks_used == 3, "11 ids and 3 generated ones fill three blocks"
    ask(bench)
    stat = bench.stat
    assert (stat.prefix_cache_hit_tokens, stat.prefix_cache_host_hit_tokens) == (16, 8)


def test_what_was_least_recently_evicted_leaves_a_full_tier(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=BLOCKS)
    ask(bench)
    for first in (500, 600, 700):
        crowd_out(bench, first)
    assert ask(bench) == (0, 0)
    assert sum(ask(bench, [*range(700, 716), 1])) == 16


def test_blocks_come_back_though_a_full_tier_takes_others_in_the_same_step(make_bench: MakeBench) -> None:
    """Each fetch evicts from a full pool into a full tier: what is being fetched gives way to none of it."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=BLOCKS)
    prompts = [range(first, first + 50) for first in (100, 200)]
    for prompt in prompts:
        ask(bench, prompt)
    for _ in range(4):
        for prompt in prompts:
            assert sum(ask(bench, prompt)) >= 32
    assert any(copies.to_host and copies.to_pool for copies in bench.runner.copied)


@pytest.mark.parametrize("crowd", [False, True], ids=["in the pool", "in host memory"])
def test_in_both_tiers_nothing_is_found_after_its_time(make_bench: MakeBench, crowd: bool) -> None:
    """The time runs from the last use, wherever the blocks have moved since."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32, prefix_cache_ttl=60.0)
    for wait, found in ((59.0, 8), (59.0, 8), (61.0, 0)):
        ask(bench)
        bench.now += wait / 2
        if crowd:
            crowd_out(bench)
        bench.now += wait / 2
        assert sum(ask(bench)) == found
    bench.now += 1000.0
    ask(bench, [1])
    assert bench.stat.host_blocks_used == 0


def test_what_is_too_old_moves_nowhere(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32, prefix_cache_ttl=60.0)
    ask(bench)
    bench.now += 61.0
    crowd_out(bench)
    assert bench.runner.copied == []


def test_salts_keep_apart_what_lies_in_host_memory(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    ask(bench, cache_salt="mine")
    crowd_out(bench)
    assert ask(bench, cache_salt="other") == (0, 0)
    assert ask(bench) == (0, 0)
    assert ask(bench, use_prefix_cache=False) == (0, 0)
    assert sum(ask(bench, cache_salt="mine")) == 8


def test_a_failed_step_takes_its_blocks_out_of_both_tiers(make_bench: MakeBench) -> None:
    """A sequence that fetched its prefix and fails leaves it nowhere, and what it left in host memory is not found."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    ask(bench)
    crowd_out(bench)
    bench.runner.spoils = lambda step: 77 in step.token_ids
    failed = bench.add([*PROMPT[:8], 77])
    bench.run()
    assert bench.ended[failed].reason is FinishReason.ERROR
    assert bench.fetched[failed] == 8
    bench.runner.spoils = lambda step: False
    assert ask(bench) == (0, 0)
    crowd_out(bench)
    assert ask(bench) == (0, 8)


def test_copies_that_fail_end_the_core(make_bench: MakeBench) -> None:
    """No request is to blame for it, and nobody knows what the blocks hold now."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    ask(bench)
    bench.runner.fails_to_copy = True
    with pytest.raises(StepFailed, match="copying blocks: RuntimeError: simulated fault"):
        crowd_out(bench)
    bench.runner.fails_to_copy = False


def test_computed_anew_a_block_leaves_host_memory(make_bench: MakeBench) -> None:
    """Log-probabilities of a prompt need all of it computed, found or not. Then it is in the pool, and only there."""
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=32)
    ask(bench)
    crowd_out(bench)
    used = bench.stat.host_blocks_used
    key = bench.add(PROMPT, prompt_logprobs=0)
    bench.run()
    assert [logprob for logprob, _ in bench.scored[key]] == [score(PROMPT[:i], PROMPT[i]) for i in range(1, 11)]
    assert bench.stat.host_blocks_used >= used - 3
    assert ask(bench) == (8, 0)


def test_a_sequence_that_was_put_back_begins_again_from_host_memory(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=64, max_batch=4)
    keys = [bench.add(range(100 * i, 100 * i + 21), 40) for i in range(1, 4)]
    bench.run()
    bench.assert_all_complete()
    assert bench.preempted
    assert any(copies.to_pool for copies in bench.runner.copied)
    assert all(bench.fetched[key] == 0 for key in keys), "what a sequence began with is told once"


@pytest.mark.parametrize("host_blocks", [1, 5, 16, 100])
def test_whatever_moves_every_answer_is_right(make_bench: MakeBench, host_blocks: int) -> None:
    """Prompts with shared beginnings, ends at any time, put back, spoilt: each has the ids that it gets alone."""
    bench = make_bench(num_blocks=BLOCKS + 3, num_host_blocks=host_blocks, prefix_cache_ttl=50.0)
    bench.runner.spoils = lambda step: 5000 in step.token_ids
    chance = random.Random(host_blocks)
    stems = [[100 * i + j for j in range(30)] for i in range(1, 6)]
    cut: set[int] = set()
    for number in range(300):
        stem = chance.choice(stems)
        prompt = [*stem[: chance.randrange(1, 31)], *([5000] if number % 20 == 0 else [900 + chance.randrange(3)])]
        key = bench.add(prompt, chance.randrange(1, 30), cache_salt=chance.choice(["", "", "s"]))
        if chance.random() < 0.1:
            bench.steps(2)
            bench.end(key)
            cut.add(key)
        bench.now += chance.choice([0.0, 1.0, 30.0])
        bench.steps(chance.randrange(3))
    bench.run()
    for key, request in bench.requests.items():
        if 5000 in request.prompt and key not in cut:
            assert bench.ended[key].reason is FinishReason.ERROR
        elif 5000 not in request.prompt:
            assert bench.is_complete(key) or key in cut
    assert sum(bench.fetched.values()) > 0 or host_blocks == 1
    assert bench.preempted


@pytest.mark.parametrize("host_blocks", [0, 8, 64])
def test_bc076_colliding_keys_are_told_apart_in_both_tiers(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, host_blocks: int
) -> None:
    """Keys of 4 bits, and prompts that crowd each other out: whatever comes back holds what was asked for."""
    monkeypatch.setattr(prefix_cache, "block_key", lambda parent, ids: bytes((sum(parent + ids) & 15,)))
    bench = make_bench(num_blocks=BLOCKS, num_host_blocks=host_blocks)
    chance = random.Random(5)
    for _ in range(200):
        prompt = tuple(chance.randrange(2) for _ in range(chance.randrange(1, 40)))
        bench.add(prompt, chance.randrange(1, 6), cache_salt=chance.choice("xy"))
        bench.steps(chance.randrange(3))
    bench.run()
    bench.assert_all_complete()
    assert (sum(bench.fetched.values()) > 0) == (host_blocks > 0)


def test_bc082_the_two_tiers_bound_what_is_remembered() -> None:
    pool, host = BlockPool(8, B), HostTier(5)
    cache = PrefixCache(pool, host)
    for first in range(500):
        pool.release(fill(pool, cache, [first, *range(10)], SCOPE))
        host.take_copies()
    assert len(cache) == 7 + 5, "the pool keeps a block for the ids that fill none"
    pool.check_books([])
    cache.check_books()


def test_a_host_block_that_is_filled_twice_before_a_step_is_copied_once() -> None:
    pool, host = BlockPool(4, B), HostTier(1)
    cache = PrefixCache(pool, host)
    pool.release(fill(pool, cache, list(range(16)), SCOPE))
    table = pool.allocate(4)
    assert host.take_copies().to_host == [(table[-1], 0)]
    assert cache.find(Cursor(SCOPE, B), list(range(16))) == [pool.total]
    cache.check_books()


def test_an_evicted_block_can_be_fetched_before_it_has_left() -> None:
    """Evicted for one sequence and asked for by the next, in one step: it goes out and comes back."""
    pool, host = BlockPool(3, B), HostTier(4)
    cache = PrefixCache(pool, host)
    pool.release(fill(pool, cache, list(range(8)), SCOPE))
    first = pool.allocate(3)
    places = cache.find(Cursor(SCOPE, B), list(range(9)))
    assert cache.in_pool(places) == []
    pool.release(first)
    blocks = cache.adopt(Cursor(SCOPE, B), places)
    copies = host.take_copies()
    assert [host_block for _, host_block in copies.to_host] == [
        host_block for host_block, _ in reversed(copies.to_pool)
    ]
    assert [block for _, block in copies.to_pool] == blocks
    assert not host.take_copies()
    pool.check_books([blocks])
    cache.check_books()


@pytest.mark.parametrize("what", ["unknown", "lost", "not copied"])
def test_wrong_books_of_the_tier_are_found(what: str) -> None:
    host = HostTier(2)
    assert host.accept(7, 0.0) == 0
    if what != "not copied":
        host.take_copies()
    if what == "lost":
        host.reserve([0])
    with pytest.raises(BooksError):
        host.check_books([] if what == "unknown" else [0])
