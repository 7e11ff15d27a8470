"""Both pools and the prefix cache against a model that keeps plain lists of ids, under any order of operations."""

from __future__ import annotations

from typing import Any

from headrace_engine.block_keys import Scope
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.kv.prefix_cache import Cursor, PrefixCache
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

B = 2
BLOCKS = 12
TTL = 3.0

Content = tuple[Scope, tuple[int, ...]]


class Holder:
    """A sequence that holds blocks: how many ids of it are computed, and where."""

    def __init__(self, ids: list[int], scope: Scope) -> None:
        self.ids = ids
        self.cursor = Cursor(scope, B)
        self.table: list[int] = []
        self.computed = 0

    def content(self, block: int) -> Content:
        """What its block of this number holds, when full."""
        return self.cursor.scope, tuple(self.ids[: (block + 1) * B])


class Integrity(RuleBasedStateMachine):
    """What was really written to each block of the pool and of host memory: scope and all ids up to its end.

    Sequences are given blocks and take more of them; what that moves is copied before the next one is computed, closed
    or forgotten, as a step does it.
    """

    holders = Bundle("holders")

    @initialize(host_blocks=st.sampled_from([0, 1, 5, 30]))
    def begin(self, host_blocks: int) -> None:
        self.pool = BlockPool(BLOCKS, B)
        self.host = HostTier(host_blocks)
        self.cache = PrefixCache(self.pool, self.host)
        self.contents: dict[int, Content] = {}
        self.host_contents: dict[int, Content] = {}
        self.released: dict[Content, float] = {}
        self.now = 0.0
        self.settled = True
        self.living: list[Holder] = []
        self.announced: tuple[set[bytes], set[bytes]] = (set(), set())

    @rule(
        target=holders,
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from(["", "s"]),
        group=st.sampled_from([0, 0, 1]),
    )
    def open(self, ids: list[int], salt: str, group: int) -> Any:
        holder = Holder(ids, Scope(salt=salt, group=group))
        hit = self.cache.find(holder.cursor, ids)
        assert len(hit) * B < len(ids)
        self.assert_fresh(holder, hit)
        shared = self.cache.in_pool(hit)
        need = self.pool.blocks_for(len(ids)) - len(shared)
        if not self.pool.can_allocate(need, shared):
            return None
        holder.table = self.cache.adopt(holder.cursor, hit)
        holder.table += self.pool.allocate(need - (len(hit) - len(shared)))
        holder.computed = len(hit) * B
        self.settled = False
        self.living.append(holder)
        return holder

    def assert_fresh(self, holder: Holder, hit: list[int]) -> None:
        """What is found is in use, or was not long ago."""
        used = {block for other in self.living for block in other.table}
        for i, location in enumerate(hit):
            assert location in used or self.released[holder.content(i)] >= self.now - TTL

    @rule()
    def settle(self) -> None:
        """A step begins."""
        copies = self.host.take_copies()
        self.host_contents |= {location: self.contents[block] for block, location in copies.to_host}
        self.contents |= {block: self.host_contents[location] for location, block in copies.to_pool}
        self.settled = True

    @rule()
    def age(self) -> None:
        self.settle()
        self.now += 1.0
        self.pool.now = self.now
        self.cache.drop_before(self.now - TTL)

    @rule(holder=holders, count=st.integers(1, 9))
    def compute(self, holder: Holder | None, count: int) -> None:
        if holder not in self.living:
            return
        assert holder is not None
        self.settle()
        end = min(len(holder.ids), holder.computed + count)
        for i in range(holder.computed // B, -(-end // B)):
            self.contents[holder.table[i]] = (holder.cursor.scope, tuple(holder.ids[: min(end, (i + 1) * B)]))
        holder.computed = end
        self.cache.register(holder.cursor, holder.ids, holder.table, end)

    @rule(holder=holders, token=st.integers(0, 1))
    def append(self, holder: Holder | None, token: int) -> None:
        if holder not in self.living:
            return
        assert holder is not None
        missing = self.pool.blocks_for(len(holder.ids) + 1) - len(holder.table)
        if self.pool.can_allocate(missing):
            self.settled = False
            holder.ids.append(token)
            holder.table += self.pool.allocate(missing)

    @rule(holder=consumes(holders))
    def close(self, holder: Holder | None) -> None:
        if holder in self.living:
            assert holder is not None
            self.settle()
            self.whoever_holds_a_block_reads_what_it_wrote()
            self.living.remove(holder)
            self.released |= {holder.content(i): self.now for i in range(holder.computed // B)}
            self.pool.release(holder.table)

    @precondition(lambda self: len(self.cache) > 0)
    @rule(location=st.integers(0, BLOCKS + 4))
    def forget(self, location: int) -> None:
        self.settle()
        self.cache.forget(location)

    @invariant()
    def changes_tell_what_each_tier_has(self) -> None:
        for change in self.cache.changes.take():
            for key in change.keys:
                assert (key in self.announced[change.host]) is not change.stored
                (self.announced[change.host].add if change.stored else self.announced[change.host].remove)(key)
        shared = [entry for entry in self.cache._entries.values() if not entry.brief]
        for host, announced in enumerate(self.announced):
            assert announced == {entry.key for entry in shared if (entry.location >= BLOCKS) == bool(host)}

    @invariant()
    def state_is_consistent(self) -> None:
        self.pool.check_integrity(holder.table for holder in self.living)
        if self.settled:
            self.cache.check_integrity()
        held = {block for holder in self.living for block in holder.table}
        assert self.pool.used == len(held)

    @invariant()
    def whoever_holds_a_block_reads_what_it_wrote(self) -> None:
        if not self.settled:
            return
        for holder in self.living:
            for i, block in enumerate(holder.table[: -(-holder.computed // B)]):
                ids = holder.ids[: min(holder.computed, (i + 1) * B)]
                assert self.contents[block] == (holder.cursor.scope, tuple(ids))


Integrity.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestIntegrity = Integrity.TestCase
