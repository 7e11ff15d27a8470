"""The block pool: used, cached and free blocks, and the order in which they are handed out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from headrace_engine.core.kv.block_pool import BlockPool, IntegrityError


def test_blocks_are_allocated_once() -> None:
    pool = BlockPool(3, 16)
    assert pool.allocate(2) == [0, 1]
    assert (pool.used, pool.cached, pool.free) == (2, 0, 1)
    assert pool.can_allocate(1)
    assert not pool.can_allocate(2)
    pool.check_integrity([[0, 1]])


def test_allocating_more_than_available_is_a_defect() -> None:
    pool = BlockPool(1, 16)
    with pytest.raises(IntegrityError, match="2 blocks requested, 1 available"):
        pool.allocate(2)


def test_tokens_take_whole_blocks() -> None:
    pool = BlockPool(1, 16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_a_shared_block_is_freed_with_its_last_reference() -> None:
    pool = BlockPool(2, 16)
    [block] = pool.allocate(1)
    pool.share([block])
    pool.release([block])
    pool.check_integrity([[block]])
    pool.release([block])
    assert pool.free == 2
    pool.check_integrity([])


def test_a_kept_block_is_cached_until_evicted_and_reported() -> None:
    pool = BlockPool(2, 16)
    evicted: list[int] = []
    pool.on_evict = lambda block, date: evicted.append(block)
    first, second = pool.allocate(2)
    pool.keep(first)
    pool.release([first, second])
    assert (pool.cached, pool.free) == (1, 1)
    assert pool.allocate(1) == [second]
    assert evicted == []
    assert pool.allocate(1) == [first]
    assert evicted == [first]
    pool.check_integrity([[first, second]])


def test_cached_blocks_expire_by_age_and_used_ones_never() -> None:
    pool = BlockPool(4, 16)
    evicted: list[tuple[int, float]] = []
    pool.on_evict = lambda block, date: evicted.append((block, date))
    old, new, used, again = pool.allocate(4)
    for block in (old, new, used, again):
        pool.keep(block)
    for date, block in ((1.0, old), (1.0, again), (2.0, new)):
        pool.now = date
        pool.release([block])
    pool.share([again])
    pool.now = 3.0
    pool.release([again])
    pool.drop_before(1.0)
    assert evicted == []
    pool.drop_before(2.0)
    assert evicted == [(old, 1.0)]
    pool.drop_before(3.0)
    assert evicted == [(old, 1.0), (new, 2.0)]
    assert (pool.used, pool.cached, pool.free) == (1, 1, 2)
    pool.check_integrity([[used]])


def test_eviction_is_by_last_use_and_from_the_tail_of_a_table() -> None:
    pool = BlockPool(4, 16)
    old, new = pool.allocate(2), pool.allocate(2)
    for block in old + new:
        pool.keep(block)
    pool.release(new)
    pool.release(old)
    pool.share(new)
    pool.release(new)
    assert pool.allocate(4) == [*reversed(old), *reversed(new)]


def test_blocks_about_to_be_shared_do_not_count_as_available() -> None:
    pool = BlockPool(2, 16)
    [block] = pool.allocate(1)
    pool.keep(block)
    pool.release([block])
    assert pool.can_allocate(2)
    assert not pool.can_allocate(2, shared=[block])
    assert pool.can_allocate(1, shared=[block])


def test_a_forgotten_block_is_free_once_it_is_unused() -> None:
    pool = BlockPool(2, 16)
    used, unused = pool.allocate(2)
    pool.keep(used)
    pool.keep(unused)
    pool.release([unused])
    pool.forget(unused)
    pool.forget(used)
    assert (pool.free, pool.cached) == (1, 0)
    pool.release([used])
    assert (pool.free, pool.cached) == (2, 0)
    pool.check_integrity([])


@pytest.mark.parametrize(
    ("spoil", "tables"),
    [
        (lambda pool: None, [[0]]),
        (lambda pool: None, [[0, 1], [1]]),
        (lambda pool: None, [[0, 1, 2]]),
        (lambda pool: pool.release([1]), [[0, 1]]),
        (lambda pool: pool.share([1]), [[0, 1]]),
        (lambda pool: pool.keep(2), [[0, 1]]),
    ],
    ids=["leaked", "held twice", "held and free", "freed too early", "never freed", "kept and free"],
)
def test_inconsistent_blocks_are_found(spoil: Callable[[BlockPool], None], tables: list[list[int]]) -> None:
    pool = BlockPool(3, 16)
    pool.allocate(2)
    pool.check_integrity([[0, 1]])
    spoil(pool)
    with pytest.raises(IntegrityError):
        pool.check_integrity(tables)
