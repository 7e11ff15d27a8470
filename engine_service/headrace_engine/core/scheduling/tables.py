"""Which blocks each sequence holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from headrace_engine.commands import AddSequence
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.kv.host_tier import HostTier
from headrace_engine.core.kv.prefix_cache import Cursor, PrefixCache, Scope
from headrace_engine.core.runner import BlockCopies
from headrace_engine.core.scheduling.sequence import Sequence


class BlockTables:
    """Gives sequences their blocks and takes them back: the only one that moves blocks between pool and sequences.

    Of a block table, the leading blocks that came from the prefix cache are shared and only read. The blocks after
    them are the sequence's own until they are full; then others may share them too.

    Args:
        scope: of the model, for the prefix cache.
        caching: use that for sequences that do not object.
    """

    def __init__(self, pool: BlockPool, host: HostTier, scope: Scope, *, caching: bool) -> None:
        self._scope = scope
        self._caching = caching
        self._pool = pool
        self._host = host
        self._cache = PrefixCache(pool, host)

    def cursor(self, request: AddSequence) -> Cursor | None:
        """Where a new sequence stands in the prefix cache; None: it has nothing to do with it."""
        scope = replace(self._scope, salt=request.cache_salt)
        if self._caching and request.use_prefix_cache:
            return Cursor(scope, self._pool.block_size)
        return Cursor(replace(scope, group=request.group), self._pool.block_size) if request.group else None

    def find_cached(self, sequence: Sequence) -> list[int]:
        """Where the longest known prefix of a waiting sequence lies, as `PrefixCache` has places, if it may be used."""
        return [] if sequence.cursor is None or sequence.scoring else self._cache.find(sequence.cursor, sequence.ids)

    def grows(self, sequence: Sequence) -> bool:
        """Whether a sequence may come to need more blocks than its ids take now."""
        return self._pool.blocks_for(sequence.longest) > self._pool.blocks_for(sequence.length)

    def can_open(self, sequence: Sequence, cached: list[int], reserve: int) -> bool:
        """Whether there are blocks for all ids of a waiting sequence, with reserve blocks left over."""
        shared = self._cache.in_pool(cached)
        return self._pool.can_allocate(self._missing(sequence) - len(shared) + reserve, shared)

    def open(self, sequence: Sequence, cached: list[int]) -> None:
        """Give a waiting sequence what `find_cached` just found, and blocks for the rest of its ids."""
        sequence.blocks = [] if sequence.cursor is None else self._cache.adopt(sequence.cursor, cached)
        sequence.computed = len(cached) * self._pool.block_size
        self.extend(sequence)

    def count_fetched(self, cached: list[int], tokens: int) -> int:
        """How many of the first tokens that `find_cached` found lie in host memory."""
        size = self._pool.block_size
        held = [min(size, tokens - first) for first in range(0, tokens, size)]
        return sum(count for count, place in zip(held, cached, strict=False) if place >= self._pool.total)

    def take_copies(self) -> BlockCopies:
        """What is to be copied before the next step, as sequences were given blocks for it."""
        return self._host.take_copies()

    def drop_before(self, date: float) -> None:
        """Give up cached blocks that nobody has used since this date."""
        self._cache.drop_before(date)

    def suffices(self, sequence: Sequence) -> bool:
        """Whether a sequence has blocks for all its ids."""
        return sequence.length <= len(sequence.blocks) * self._pool.block_size

    def can_extend(self, sequence: Sequence) -> bool:
        """Whether there are blocks for those ids of a running sequence that have none."""
        return self._pool.can_allocate(self._missing(sequence))

    def can_extend_all(self, sequences: Collection[Sequence]) -> bool:
        """Whether there are blocks for those ids of all these running sequences that have none; one each at most."""
        return self._pool.can_allocate(len(sequences)) or self._pool.can_allocate(sum(map(self._missing, sequences)))

    def extend(self, sequence: Sequence) -> None:
        """Give a sequence blocks for those of its ids that have none."""
        sequence.blocks += self._pool.allocate(self._missing(sequence))

    def publish(self, sequence: Sequence) -> None:
        """Let others share the blocks that a sequence has filled."""
        if sequence.cursor is not None:
            self._cache.register(sequence.cursor, sequence.ids, sequence.blocks, sequence.computed)
            if sequence.pause is not None:
                self._hold_found(sequence, sequence.cursor)

    def distrust(self, sequence: Sequence) -> None:
        """Let nobody find what a sequence's blocks hold any more."""
        for block in sequence.blocks:
            self._cache.forget(block)

    def close(self, sequence: Sequence) -> None:
        """Take a sequence's blocks back. Full ones stay in the cache while nobody needs the room."""
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Compare the books of pool and cache with the tables of all sequences.

        Raises:
            IntegrityError: they differ.
        """
        self._pool.check_integrity(sequence.blocks for sequence in sequences)
        self._cache.check_integrity()

    def _hold_found(self, leader: Sequence, cursor: Cursor) -> None:
        """Have the leader of a group go on with the blocks that the others will find, whoever filled those."""
        full = leader.computed // self._pool.block_size
        found = self._cache.find(cursor, leader.ids)[:full]
        if self._cache.in_pool(found) == found:
            self._pool.share(found)
            self._pool.release(leader.blocks[: len(found)])
            leader.blocks[: len(found)] = found

    def _missing(self, sequence: Sequence) -> int:
        return self._pool.blocks_for(sequence.length) - len(sequence.blocks)
