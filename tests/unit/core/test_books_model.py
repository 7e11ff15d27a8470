"""Block pool and prefix cache against a model that keeps plain lists of ids, under any order of operations."""

from __future__ import annotations

from typing import Any

from headrace_engine.core.block_pool import BlockPool
from headrace_engine.core.prefix_cache import Cursor, PrefixCache, Scope
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

B = 2
BLOCKS = 12


class Holder:
    """A sequence that holds blocks: how many ids of it are computed, and where."""

    def __init__(self, ids: list[int], scope: Scope) -> None:
        self.ids = ids
        self.cursor = Cursor(scope, B)
        self.table: list[int] = []
        self.computed = 0


class Books(RuleBasedStateMachine):
    """`contents` is what was really written to each block: scope and all ids up to the end of the block."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, B)
        self.cache = PrefixCache(self.pool)
        self.contents: dict[int, tuple[Scope, list[int]]] = {}
        self.living: list[Holder] = []

    @rule(
        target=holders,
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from(["", "s"]),
    )
    def open(self, ids: list[int], salt: str) -> Any:
        holder = Holder(ids, Scope(salt=salt))
        hit = self.cache.find(holder.cursor, ids)
        assert len(hit) * B < len(ids)
        for i, block in enumerate(hit):
            assert self.contents[block] == (holder.cursor.scope, ids[: (i + 1) * B])
        need = self.pool.blocks_for(len(ids)) - len(hit)
        if not self.pool.can_allocate(need, hit):
            return None
        self.cache.adopt(holder.cursor, hit)
        holder.table = hit + self.pool.allocate(need)
        holder.computed = len(hit) * B
        self.living.append(holder)
        return holder

    @rule(holder=holders, count=st.integers(1, 9))
    def compute(self, holder: Holder | None, count: int) -> None:
        if holder not in self.living:
            return
        assert holder is not None
        end = min(len(holder.ids), holder.computed + count)
        for i in range(holder.computed // B, -(-end // B)):
            self.contents[holder.table[i]] = (holder.cursor.scope, holder.ids[: min(end, (i + 1) * B)])
        holder.computed = end
        self.cache.register(holder.cursor, holder.ids, holder.table, end)

    @rule(holder=holders, token=st.integers(0, 1))
    def append(self, holder: Holder | None, token: int) -> None:
        if holder not in self.living:
            return
        assert holder is not None
        missing = self.pool.blocks_for(len(holder.ids) + 1) - len(holder.table)
        if self.pool.can_allocate(missing):
            holder.ids.append(token)
            holder.table += self.pool.allocate(missing)

    @rule(holder=consumes(holders))
    def close(self, holder: Holder | None) -> None:
        if holder in self.living:
            assert holder is not None
            self.living.remove(holder)
            self.pool.release(holder.table)

    @precondition(lambda self: len(self.cache) > 0)
    @rule(block=st.integers(0, BLOCKS - 1))
    def forget(self, block: int) -> None:
        self.cache.forget(block)

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check_books(holder.table for holder in self.living)
        self.cache.check_books()
        held = {block for holder in self.living for block in holder.table}
        assert self.pool.used == len(held)

    @invariant()
    def whoever_holds_a_block_reads_what_it_wrote(self) -> None:
        for holder in self.living:
            for i, block in enumerate(holder.table[: -(-holder.computed // B)]):
                ids = holder.ids[: min(holder.computed, (i + 1) * B)]
                assert self.contents[block] == (holder.cursor.scope, ids)


Books.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBooks = Books.TestCase
