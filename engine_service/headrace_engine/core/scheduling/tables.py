"""The block tables of sequences.

A block table holds one reference to each of its blocks. `open` and `extend` take them from the pool, `close` returns
them: at the end of a sequence, or when it is preempted, which forgets the table and keeps the ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from headrace_engine.block_keys import Scope
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.kv.prefix_cache import Cursor, PrefixCache
from headrace_engine.core.runner import BlockCopies
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.step_output import CacheChange


class BlockTables:
    """Gives blocks to sequences and takes them back. Nothing else moves blocks between pool and sequences.

    The leading blocks of a table that came from the prefix cache are shared and read-only. The blocks after them
    belong to the sequence alone until they are full; then other sequences may share them too.

    Args:
        scope: the model's scope in the prefix cache.
        caching: use the prefix cache for sequences that do not opt out.
    """

    def __init__(self, pool: BlockPool, host: HostTier, scope: Scope, *, caching: bool) -> None:
        self._scope = scope
        self._caching = caching
        self._pool = pool
        self._host = host
        self._cache = PrefixCache(pool, host)
        self._branched: list[tuple[int, int]] = []  # Blocks to copy within the pool before the next step.

    def cursor(self, request: AddSequence) -> Cursor | None:
        """Return the position of a new sequence in the prefix cache; None if it does not use the cache."""
        scope = self._scope.narrowed(request)
        if self._caching and request.use_prefix_cache:
            return Cursor(scope, self._pool.block_size)
        return Cursor(replace(scope, group=request.group), self._pool.block_size) if request.group else None

    def find_cached(self, sequence: Sequence) -> list[int]:
        """Return the `PrefixCache` locations of the longest known prefix of a waiting sequence, if it may use them."""
        if sequence.cursor is None or sequence.reports_prompt:
            return []
        found = self._cache.find(sequence.cursor, sequence.ids)
        if sequence.search is not None and sequence.pause is not None:  # Only what all beams have in common.
            return found[: (sequence.pause - 1) // self._pool.block_size]
        return found

    def growth(self, sequence: Sequence) -> int:
        """Return the number of blocks to hold back for a sequence: one if it may need more than its ids take now.

        Beams that have no sequences yet count as well, with the blocks that they do not share.
        """
        size, pool, beams = self._pool.block_size, self._pool, sequence.slots
        one = int(pool.blocks_for(sequence.longest) > pool.blocks_for(sequence.length))
        if beams == 1:
            return one
        shared = (sequence.pause or sequence.length) // size
        most = beams * pool.blocks_for(sequence.longest) - pool.blocks_for(sequence.length)
        return min((beams - 1) * (pool.blocks_for(sequence.length + 1) - shared) + beams * one, most)

    def can_open(self, sequence: Sequence, cached: list[int], reserve: int) -> bool:
        """Return True if there are blocks for all ids of a waiting sequence, with `reserve` blocks left over."""
        shared = self._cache.in_pool(cached)
        return self._pool.can_allocate(self._missing_blocks(sequence) - len(shared) + reserve, shared)

    def open(self, sequence: Sequence, cached: list[int]) -> None:
        """Give a waiting sequence the locations that `find_cached` just found, and blocks for the rest of its ids."""
        sequence.blocks = [] if sequence.cursor is None else self._cache.adopt(sequence.cursor, cached)
        sequence.computed = len(cached) * self._pool.block_size
        self.extend(sequence)

    def count_fetched(self, cached: list[int], tokens: int) -> int:
        """Return how many of the first `tokens` tokens that `find_cached` found are in the host tier."""
        size = self._pool.block_size
        held = [min(size, tokens - first) for first in range(0, tokens, size)]
        return sum(count for count, location in zip(held, cached, strict=False) if location >= self._pool.total)

    def take_copies(self) -> BlockCopies:
        """Return the copies due before the next step, because of the blocks that sequences were given."""
        copies, branched, self._branched = self._host.take_copies(), self._branched, []
        return replace(copies, within=branched) if branched else copies

    def take_changes(self) -> list[CacheChange]:
        """Return what came into the prefix cache, and left it, since the last call."""
        return self._cache.changes.take()

    def drop_before(self, date: float) -> None:
        """Evict cached blocks that were last used before this time."""
        self._cache.drop_before(date)

    def has_blocks(self, sequence: Sequence) -> bool:
        """Return True if a sequence has blocks for all its ids."""
        return sequence.length <= len(sequence.blocks) * self._pool.block_size

    def can_extend(self, sequence: Sequence) -> bool:
        """Return True if there are blocks for the ids of a running sequence that have none."""
        return self._pool.can_allocate(self._missing_blocks(sequence))

    def can_extend_all(self, sequences: Collection[Sequence]) -> bool:
        """Return True if there are blocks for all these running sequences, which lack at most one each."""
        return self._pool.can_allocate(len(sequences)) or self._pool.can_allocate(
            sum(map(self._missing_blocks, sequences))
        )

    def extend(self, sequence: Sequence) -> None:
        """Give a sequence blocks for the ids that have none."""
        # Appended in place: the step in flight has this very list, and backends send only what was added to it.
        sequence.blocks += self._pool.allocate(self._missing_blocks(sequence))

    def missing_to_branch(self, parent: Sequence, length: int) -> int:
        """Return the number of blocks that a sequence of this length needs beyond those that it shares with another."""
        return self._pool.blocks_for(length) - parent.computed // self._pool.block_size

    def branch(self, parent: Sequence, sequence: Sequence) -> None:
        """Give a sequence the computed ids of another, which its own begin with, and blocks for the others.

        Full blocks are shared; the one that is being filled is copied before the next step.
        """
        full, rest = divmod(parent.computed, self._pool.block_size)
        sequence.blocks, sequence.computed = parent.blocks[:full], parent.computed
        # One reference for each table, so that either sequence may end first.
        self._pool.share(sequence.blocks)
        self.extend(sequence)
        if rest:
            # Harmless if a sequence loses its block before the step: the next owner of it writes after this copy.
            self._branched.append((parent.blocks[full], sequence.blocks[full]))
        sequence.cursor = None if parent.cursor is None else parent.cursor.branch(full)

    def reserve_blocks(self, sequence: Sequence, wanted: int, reserve: int) -> int:
        """Return for how many drafted ids after its own, at most `wanted`, a sequence has blocks.

        It is given more while `reserve` blocks are left over; it never holds more than its longest text takes.
        """
        most = min(wanted, sequence.longest - sequence.length)
        missing = self._pool.blocks_for(sequence.length + most) - len(sequence.blocks)
        if missing > 0 and self._pool.can_allocate(missing + reserve):
            # They stay in its table even if no draft holds: its own ids will fill them.
            sequence.blocks += self._pool.allocate(missing)
        return min(most, len(sequence.blocks) * self._pool.block_size - sequence.length)

    def publish(self, sequence: Sequence) -> None:
        """Register the blocks that a sequence has filled in the prefix cache; from then on they are read-only."""
        if sequence.cursor is not None:
            self._cache.register(sequence.cursor, sequence.ids, sequence.blocks, sequence.computed)
            if sequence.pause is not None:
                self._adopt_found(sequence, sequence.cursor)

    def invalidate(self, sequence: Sequence) -> None:
        """Remove the contents of a sequence's blocks from the prefix cache."""
        # Shared ones too: their other owners keep them, but nobody else finds the contents.
        for block in sequence.blocks:
            self._cache.forget(block)

    def close(self, sequence: Sequence) -> None:
        """Release a sequence's blocks. Registered ones stay cached until the pool needs them."""
        self._pool.release(sequence.blocks)
        # A new list instead of an emptied one: the step in flight may still read the old one.
        sequence.blocks = []
        sequence.computed = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Check the pool and the prefix cache against the tables of all sequences.

        Raises:
            IntegrityError: they are inconsistent.
        """
        self._pool.check_integrity(sequence.blocks for sequence in sequences)
        self._cache.check_integrity()

    def _adopt_found(self, leader: Sequence, cursor: Cursor) -> None:
        """Let the leader of a group use the cached blocks that its followers will find, in exchange for its own."""
        full = leader.computed // self._pool.block_size
        found = self._cache.find(cursor, leader.ids)[:full]
        if self._cache.in_pool(found) == found:
            self._pool.share(found)
            self._pool.release(leader.blocks[: len(found)])
            # A new list as well. A step in flight may read the released blocks: whoever gets them next writes after it.
            leader.blocks = [*found, *leader.blocks[len(found) :]]

    def _missing_blocks(self, sequence: Sequence) -> int:
        """Return the number of blocks that its ids lack; it may have more for drafted ones."""
        return max(0, self._pool.blocks_for(sequence.length) - len(sequence.blocks))
