"""The host tier: what the pool evicts comes back from host memory, right and reported, until it expires."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from headrace_engine.block_keys import Scope
from headrace_engine.core.kv import prefix_cache
from headrace_engine.core.kv.block_pool import BlockPool, IntegrityError
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.kv.prefix_cache import Cursor, PrefixCache
from headrace_engine.core.steps.executor import StepFailed
from headrace_engine.result_types import FinishReason
from support.core.rig import Rig
from support.core.simulated import score
from unit.core.conftest import MakeRig
from unit.core.kv.test_prefix_cache import fill

B = 4
BLOCKS = 16
"""The smallest pool for the rig's longest sequence."""
PROMPT = list(range(1, 12))
"""Two full blocks of four, and three ids more."""
SCOPE = Scope(revision="r")


def crowd_out(rig: Rig, first: int = 500) -> None:
    """Let another sequence take the whole pool and leave."""
    rig.add(range(first, first + 4 * (BLOCKS - 1)), 3)
    rig.run()


def ask(rig: Rig, prompt: Iterable[int] = PROMPT, **fields: object) -> tuple[int, int]:
    """Tokens of a prompt that came from the pool, and from host memory; its answer is right."""
    key = rig.add(tuple(prompt), **fields)
    rig.run()
    assert rig.is_complete(key)
    return rig.cached[key] - rig.fetched[key], rig.fetched[key]


def test_an_evicted_prefix_comes_back_from_host_memory(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    assert ask(rig) == (0, 0)
    assert ask(rig) == (8, 0)
    crowd_out(rig)
    rig.runner.seen.clear()
    assert ask(rig) == (0, 8)
    assert rig.runner.seen.isdisjoint(PROMPT[:8]), "what was copied was computed as well"
    assert ask(rig) == (8, 0)
    rig.assert_all_complete()


def test_without_host_blocks_prefixes_are_computed_again(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS)
    ask(rig)
    crowd_out(rig)
    assert ask(rig) == (0, 0)
    assert rig.runner.copied == []


def test_a_prefix_may_lie_in_both_tiers(make_rig: MakeRig) -> None:
    """Eviction begins with the tail."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    prompt = range(100, 149)
    ask(rig, prompt)
    ask(rig, range(300, 320))
    pool, host = ask(rig, prompt)
    assert pool > 0
    assert host > 0
    assert pool + host == 48
    assert ask(rig, range(100, 122)) == (20, 0)


def test_only_prompt_tokens_are_reported_as_cached(make_rig: MakeRig) -> None:
    """A sequence that an earlier core began finds its own ids as well: those are not the prompt's."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    key = rig.add(PROMPT[:6], 10)
    rig.run()
    crowd_out(rig)
    again = rig.add(PROMPT[:6], 12, generated=tuple(rig.tokens[key]))
    rig.run()
    assert (rig.cached[again], rig.fetched[again]) == (6, 6)
    assert rig.stat.counters.prefix_cache_host_hit_tokens == 12


def test_statistics_count_the_tier_and_its_hits(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    ask(rig)
    ask(rig)
    assert (rig.stat.pool.host_blocks_total, rig.stat.pool.host_blocks_used) == (32, 0)
    crowd_out(rig)
    assert rig.stat.pool.host_blocks_used == 3, "11 ids and 3 generated ones fill three blocks"
    ask(rig)
    stat = rig.stat
    assert (stat.counters.prefix_cache_hit_tokens, stat.counters.prefix_cache_host_hit_tokens) == (16, 8)


def test_what_was_least_recently_evicted_leaves_a_full_tier(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=BLOCKS)
    ask(rig)
    for first in (500, 600, 700):
        crowd_out(rig, first)
    assert ask(rig) == (0, 0)
    assert sum(ask(rig, [*range(700, 716), 1])) == 16


def test_blocks_return_while_a_full_tier_takes_others(make_rig: MakeRig) -> None:
    """Each fetch evicts from a full pool into a full tier: what is being fetched gives way to none of it."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=BLOCKS)
    prompts = [range(first, first + 50) for first in (100, 200)]
    for prompt in prompts:
        ask(rig, prompt)
    for _ in range(4):
        for prompt in prompts:
            assert sum(ask(rig, prompt)) >= 32
    assert any(copies.to_host and copies.to_pool for copies in rig.runner.copied)


@pytest.mark.parametrize("crowd", [False, True], ids=["in the pool", "in host memory"])
def test_in_both_tiers_nothing_is_found_after_it_expired(make_rig: MakeRig, crowd: bool) -> None:
    """The time runs from the last use, wherever the blocks have moved since."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32, prefix_cache_ttl=60.0)
    for wait, found in ((59.0, 8), (59.0, 8), (61.0, 0)):
        ask(rig)
        rig.now += wait / 2
        if crowd:
            crowd_out(rig)
        rig.now += wait / 2
        assert sum(ask(rig)) == found
    rig.now += 1000.0
    ask(rig, [1])
    assert rig.stat.pool.host_blocks_used == 0


def test_expired_blocks_move_to_no_tier(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32, prefix_cache_ttl=60.0)
    ask(rig)
    rig.now += 61.0
    crowd_out(rig)
    assert rig.runner.copied == []


def test_salts_separate_what_is_in_host_memory(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    ask(rig, cache_salt="mine")
    crowd_out(rig)
    assert ask(rig, cache_salt="other") == (0, 0)
    assert ask(rig) == (0, 0)
    assert ask(rig, use_prefix_cache=False) == (0, 0)
    assert sum(ask(rig, cache_salt="mine")) == 8


def test_a_failed_step_takes_its_blocks_out_of_both_tiers(make_rig: MakeRig) -> None:
    """A sequence that fetched its prefix and fails leaves it nowhere, and what it left in host memory is not found."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    ask(rig)
    crowd_out(rig)
    rig.runner.spoils = lambda step: 77 in step.token_ids
    failed = rig.add([*PROMPT[:8], 77])
    rig.run()
    assert rig.ended[failed].reason is FinishReason.ERROR
    assert rig.fetched[failed] == 8
    rig.runner.spoils = lambda step: False
    assert ask(rig) == (0, 0)
    crowd_out(rig)
    assert ask(rig) == (0, 8)


def test_copies_that_fail_end_the_core(make_rig: MakeRig) -> None:
    """No single request caused it, and the contents of the blocks are unknown."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    ask(rig)
    rig.runner.fails_to_copy = True
    with pytest.raises(StepFailed, match="copying blocks: RuntimeError: simulated fault"):
        crowd_out(rig)
    rig.runner.fails_to_copy = False


def test_a_recomputed_block_leaves_host_memory(make_rig: MakeRig) -> None:
    """Log-probabilities of a prompt need all of it computed, found or not. Then it is in the pool, and only there."""
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=32)
    ask(rig)
    crowd_out(rig)
    used = rig.stat.pool.host_blocks_used
    key = rig.add(PROMPT, prompt_logprobs=0)
    rig.run()
    assert [logprob for logprob, _ in rig.prompt_logprobs[key]] == [score(PROMPT[:i], PROMPT[i]) for i in range(1, 11)]
    assert rig.stat.pool.host_blocks_used >= used - 3
    assert ask(rig) == (8, 0)


def test_a_preempted_sequence_resumes_from_host_memory(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=64, max_batch=4)
    keys = [rig.add(range(100 * i, 100 * i + 21), 40) for i in range(1, 4)]
    rig.run()
    rig.assert_all_complete()
    assert rig.preempted
    assert any(copies.to_pool for copies in rig.runner.copied)
    assert all(rig.fetched[key] == 0 for key in keys), "the cached prefix is reported once"


@pytest.mark.parametrize("host_blocks", [1, 5, 16, 100])
def test_answers_are_right_whatever_moves(make_rig: MakeRig, host_blocks: int) -> None:
    """Prompts with shared beginnings, ends at any time, put back, spoilt: each has the ids that it gets alone."""
    rig = make_rig(num_blocks=BLOCKS + 3, num_host_blocks=host_blocks, prefix_cache_ttl=50.0)
    rig.runner.spoils = lambda step: 5000 in step.token_ids
    chance = random.Random(host_blocks)
    stems = [[100 * i + j for j in range(30)] for i in range(1, 6)]
    cut: set[int] = set()
    for number in range(300):
        stem = chance.choice(stems)
        prompt = [*stem[: chance.randrange(1, 31)], *([5000] if number % 20 == 0 else [900 + chance.randrange(3)])]
        key = rig.add(prompt, chance.randrange(1, 30), cache_salt=chance.choice(["", "", "s"]))
        if chance.random() < 0.1:
            rig.steps(2)
            rig.end(key)
            cut.add(key)
        rig.now += chance.choice([0.0, 1.0, 30.0])
        rig.steps(chance.randrange(3))
    rig.run()
    for key, request in rig.requests.items():
        if 5000 in request.prompt and key not in cut:
            assert rig.ended[key].reason is FinishReason.ERROR
        elif 5000 not in request.prompt:
            assert rig.is_complete(key) or key in cut
    assert sum(rig.fetched.values()) > 0 or host_blocks == 1
    assert rig.preempted


@pytest.mark.parametrize("host_blocks", [0, 8, 64])
def test_bc076_colliding_keys_are_distinguished_in_both_tiers(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, host_blocks: int
) -> None:
    """Keys of 4 bits, and prompts that crowd each other out: whatever comes back holds what was asked for."""
    monkeypatch.setattr(prefix_cache, "block_key", lambda parent, ids: bytes((sum(parent + ids) & 15,)))
    rig = make_rig(num_blocks=BLOCKS, num_host_blocks=host_blocks)
    chance = random.Random(5)
    for _ in range(200):
        prompt = tuple(chance.randrange(2) for _ in range(chance.randrange(1, 40)))
        rig.add(prompt, chance.randrange(1, 6), cache_salt=chance.choice("xy"))
        rig.steps(chance.randrange(3))
    rig.run()
    rig.assert_all_complete()
    assert (sum(rig.fetched.values()) > 0) == (host_blocks > 0)


def test_bc082_the_two_tiers_bound_what_is_remembered() -> None:
    pool, host = BlockPool(8, B), HostTier(5)
    cache = PrefixCache(pool, host)
    for first in range(500):
        pool.release(fill(pool, cache, [first, *range(10)], SCOPE))
        host.take_copies()
    assert len(cache) == 7 + 5, "the pool keeps a block for the ids that fill none"
    pool.check_integrity([])
    cache.check_integrity()


def test_a_host_block_filled_twice_in_a_step_is_copied_once() -> None:
    pool, host = BlockPool(4, B), HostTier(1)
    cache = PrefixCache(pool, host)
    pool.release(fill(pool, cache, list(range(16)), SCOPE))
    table = pool.allocate(4)
    assert host.take_copies().to_host == [(table[-1], 0)]
    assert cache.find(Cursor(SCOPE, B), list(range(16))) == [pool.total]
    cache.check_integrity()


def test_an_evicted_block_can_be_fetched_before_it_has_left() -> None:
    """Evicted for one sequence and asked for by the next, in one step: it goes out and comes back."""
    pool, host = BlockPool(3, B), HostTier(4)
    cache = PrefixCache(pool, host)
    pool.release(fill(pool, cache, list(range(8)), SCOPE))
    first = pool.allocate(3)
    locations = cache.find(Cursor(SCOPE, B), list(range(9)))
    assert cache.in_pool(locations) == []
    pool.release(first)
    blocks = cache.adopt(Cursor(SCOPE, B), locations)
    copies = host.take_copies()
    assert [host_block for _, host_block in copies.to_host] == [
        host_block for host_block, _ in reversed(copies.to_pool)
    ]
    assert [block for _, block in copies.to_pool] == blocks
    assert not host.take_copies()
    pool.check_integrity([blocks])
    cache.check_integrity()


@pytest.mark.parametrize("what", ["unknown", "lost", "not copied"])
def test_inconsistent_host_blocks_are_found(what: str) -> None:
    host = HostTier(2)
    assert host.accept(7, 0.0) == 0
    if what != "not copied":
        host.take_copies()
    if what == "lost":
        host.reserve([0])
    with pytest.raises(IntegrityError):
        host.check_integrity([] if what == "unknown" else [0])
