"""The prefix cache by itself: what is found, what is never confused, and that it does not grow."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import headrace_engine
import pytest
from headrace_engine.block_keys import Scope
from headrace_engine.core.kv import prefix_cache
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.prefix_cache import Cursor, PrefixCache
from unit.core.conftest import MakeRig

B = 4
PRODUCT = tracemalloc.Filter(True, str(Path(headrace_engine.__file__).with_name("*")))
SCOPE = Scope(revision="r", kv_mode="DEFAULT", adapter="a", media_digest="m", salt="s")


def fill(pool: BlockPool, cache: PrefixCache, ids: list[int], scope: Scope = SCOPE) -> list[int]:
    """Compute ids like a sequence that shares what it can; the block table, still held."""
    cursor = Cursor(scope, B)
    blocks = cache.find(cursor, ids)
    cache.adopt(cursor, blocks)
    blocks = blocks + pool.allocate(pool.blocks_for(len(ids)) - len(blocks))
    cache.register(cursor, ids, blocks, len(ids))
    return blocks


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(16, B)


@pytest.fixture
def cache(pool: BlockPool) -> PrefixCache:
    return PrefixCache(pool)


def test_full_blocks_are_found_in_order(pool: BlockPool, cache: PrefixCache) -> None:
    blocks = fill(pool, cache, list(range(10)))
    assert cache.find(Cursor(SCOPE, B), list(range(20))) == blocks[:2]
    assert cache.find(Cursor(SCOPE, B), [*range(4), 99, 5, 6, 7, 8]) == blocks[:1]
    assert cache.find(Cursor(SCOPE, B), [99, *range(1, 10)]) == []


def test_bc077_the_last_token_is_never_found(pool: BlockPool, cache: PrefixCache) -> None:
    blocks = fill(pool, cache, list(range(8)))
    assert cache.find(Cursor(SCOPE, B), list(range(8))) == blocks[:1]
    assert cache.find(Cursor(SCOPE, B), list(range(9))) == blocks


def test_a_block_in_the_middle_is_not_found_without_its_head(pool: BlockPool, cache: PrefixCache) -> None:
    blocks = fill(pool, cache, list(range(12)))
    cache.forget(blocks[0])
    assert cache.find(Cursor(SCOPE, B), list(range(12))) == []


@pytest.mark.parametrize("field", ["revision", "kv_mode", "adapter", "media_digest", "salt"])
def test_bc072_bc075_nothing_is_shared_between_scopes(pool: BlockPool, cache: PrefixCache, field: str) -> None:
    blocks = fill(pool, cache, list(range(8)))
    other = replace(SCOPE, **{field: "other"})
    assert cache.find(Cursor(other, B), list(range(9))) == []
    assert cache.find(Cursor(replace(other, **{field: getattr(SCOPE, field)}), B), list(range(9))) == blocks


def test_scopes_differ_even_where_their_fields_concatenate_alike() -> None:
    assert Scope(adapter="ab").key != Scope(adapter="a", media_digest="b").key
    assert Scope(adapter="a', 'b").key != Scope(adapter="a", media_digest="b").key


def test_keys_have_128_bits() -> None:
    assert len(prefix_cache.block_key(b"", b"ids")) == 16


def test_bc076_colliding_keys_differ_by_ids_and_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys of 4 bits, whatever is found holds exactly the ids asked for, behind exactly the ids before them."""
    monkeypatch.setattr(prefix_cache, "block_key", lambda parent, ids: _four_bits(parent + ids))
    pool = BlockPool(64, B)
    cache = PrefixCache(pool)
    contents: dict[int, tuple[str, tuple[int, ...]]] = {}
    randomness = random.Random(1)
    found = 0
    for _ in range(200):
        ids = [randomness.randrange(2) for _ in range(4 * B)]
        salt = randomness.choice("xy")
        hit = cache.find(Cursor(replace(SCOPE, salt=salt), B), ids)
        found += len(hit)
        for i, block in enumerate(hit):
            assert contents[block] == (salt, tuple(ids[: (i + 1) * B]))
        table = fill(pool, cache, ids, replace(SCOPE, salt=salt))
        contents |= {block: (salt, tuple(ids[: (i + 1) * B])) for i, block in enumerate(table)}
        pool.check_integrity([table])
        cache.check_integrity()
        pool.release(table)
    assert found > 20, "no hits: nothing was tested"
    assert len(cache) <= 16


def test_bc076_answers_are_right_whatever_keys_collide(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 prompts under keys of 4 bits, in two tenants: each has the ids it gets alone, and hits within its own."""
    monkeypatch.setattr(prefix_cache, "block_key", lambda parent, ids: _four_bits(parent + ids))
    rig = make_rig(num_blocks=32)
    randomness = random.Random(5)
    asked: list[tuple[int, str, tuple[int, ...]]] = []
    for _ in range(200):
        prompt = tuple(randomness.randrange(2) for _ in range(randomness.randrange(1, 20)))
        salt = randomness.choice("xy")
        asked.append((rig.add(prompt, randomness.randrange(1, 6), cache_salt=salt), salt, prompt))
        rig.steps(randomness.randrange(3))
    rig.run()
    rig.assert_all_complete()
    seen: dict[str, set[int]] = {"x": set(), "y": set()}
    for key, salt, prompt in asked:
        for length in range(B, rig.cached[key] + 1, B):
            assert hash((salt, prompt[:length])) in seen[salt], "a hit on what this tenant never computed"
        whole = (*prompt, *rig.tokens[key])
        seen[salt] |= {hash((salt, whole[:length])) for length in range(B, len(whole) + 1, B)}
    assert sum(rig.cached.values()) >= 10 * B, "no hits: nothing was tested"


def test_equal_blocks_computed_at_once_are_known_once(pool: BlockPool, cache: PrefixCache) -> None:
    ids = list(range(9))
    cursors = [Cursor(SCOPE, B), Cursor(SCOPE, B)]
    tables = [pool.allocate(3), pool.allocate(3)]
    for cursor, table in zip(cursors, tables, strict=True):
        cache.register(cursor, ids, table, 9)
    assert len(cache) == 2
    assert cache.find(Cursor(SCOPE, B), ids) == tables[0][:2]
    pool.release(tables[1])
    assert pool.cached == 0
    pool.check_integrity([tables[0]])


def test_a_tail_is_found_again_once_its_head_is_recomputed(pool: BlockPool, cache: PrefixCache) -> None:
    ids = list(range(9))
    old = fill(pool, cache, ids)
    cache.forget(old[0])
    pool.release(old)
    new = fill(pool, cache, ids)
    assert cache.find(Cursor(SCOPE, B), ids) == new[:2]
    pool.release(new)
    pool.check_integrity([])
    cache.check_integrity()


def test_evicted_blocks_are_forgotten(pool: BlockPool, cache: PrefixCache) -> None:
    pool.release(fill(pool, cache, list(range(9))))
    table = pool.allocate(16)
    assert len(cache) == 0
    assert cache.find(Cursor(SCOPE, B), list(range(9))) == []
    pool.check_integrity([table])


def test_a_restarted_sequence_reuses_what_is_left_of_it(pool: BlockPool, cache: PrefixCache) -> None:
    ids = list(range(9))
    cursor = Cursor(SCOPE, B)
    table = pool.allocate(3)
    cache.register(cursor, ids, table, 9)
    pool.release(table)
    assert cache.find(cursor, ids) == table[:2]
    pool.release(pool.allocate(16))
    assert cache.find(cursor, ids) == []
    cache.adopt(cursor, [])
    table = pool.allocate(3)
    cache.register(cursor, ids, table, 9)
    assert cache.find(Cursor(SCOPE, B), ids) == table[:2]


def test_bc082_memory_stands_still_once_the_pool_is_full() -> None:
    """Thousands of prompts that no other resembles leave nothing behind but the entries of the blocks there are."""
    pool = BlockPool(32, B)
    cache = PrefixCache(pool)

    def serve(first: int, count: int) -> None:
        for i in range(first, first + count):
            pool.release(fill(pool, cache, [i, *range(10)]))
            cache.changes.take()

    serve(0, 500)
    tracemalloc.start()
    try:
        serve(500, 3000)
        kept = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    growth = sum(trace.size for trace in kept.filter_traces([PRODUCT]).traces)
    assert 30 <= len(cache) <= 32
    # Entries made since tracing began replace older ones that were not traced: 32 of them, below 1 KiB each.
    assert growth < 32 * 1024


def _four_bits(data: bytes) -> bytes:
    return bytes((hashlib.blake2b(data).digest()[0] & 15,))
