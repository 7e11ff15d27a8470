"""Ownership of the blocks of the KV pool.

A block has one owner at a time. While its reference count is above zero, the block tables of sequences own it and the
pool does not touch it. At zero it returns to the pool: to the free list, or, if `keep` marked it, to a queue of cached
blocks whose contents the prefix cache may still find. `on_evict` ends that: the prefix cache loses the contents before
the block gets its next owner.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


class IntegrityError(RuntimeError):
    """The accounting of the KV pool is inconsistent: a defect of the engine."""


class BlockPool:
    """Owns the blocks: each is used (referenced by block tables), cached (unused, its contents kept) or free.

    A block marked with `keep` becomes cached instead of free when its last reference is released. Cached blocks are
    allocated only when no free one is left: short-lived ones first, then the least recently used.

    Attributes:
        block_size: tokens per block.
        on_evict: called just before the contents of a kept block are given up, with the block and the time it was
            cached at.
        now: time stamped on blocks that become cached.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.on_evict: Callable[[int, float], None] = _nothing
        self._references = [0] * num_blocks
        self._free = list(reversed(range(num_blocks)))
        self.now = 0.0
        self._cached: OrderedDict[int, float] = OrderedDict()
        self._cached_brief: OrderedDict[int, float] = OrderedDict()
        self._kept: set[int] = set()
        self._brief: set[int] = set()

    @property
    def total(self) -> int:
        """Number of blocks."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Number of unused blocks without contents."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Number of unused blocks whose contents are kept."""
        return len(self._cached) + len(self._cached_brief)

    @property
    def available(self) -> int:
        """Number of blocks that `allocate` can return."""
        return len(self._free) + self.cached

    @property
    def used(self) -> int:
        """Number of blocks that block tables refer to."""
        return self.total - self.available

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for this many tokens."""
        return -(-tokens // self.block_size)

    def can_allocate(self, count: int, shared: Iterable[int] = ()) -> bool:
        """Return True if `count` blocks are available once the blocks in `shared` are taken with `share`."""
        return self.available - sum(not self._references[block] for block in shared) >= count

    def allocate(self, count: int) -> list[int]:
        """Return `count` blocks with one reference each; check `can_allocate` first.

        Raises:
            IntegrityError: fewer are available.
        """
        if count > self.available:
            raise IntegrityError(f"{count} blocks requested, {self.available} available")
        return [self._take() for _ in range(count)]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these used or cached blocks."""
        for block in blocks:
            if not self._references[block]:
                # It passes from the pool to block tables with its contents, which stay in the prefix cache.
                del self._cached_queue(block)[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a table."""
        # Last block first, so that the tail of a prefix is evicted before its head: no lookup reaches a headless tail.
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._retire(block)

    def keep(self, block: int, *, brief: bool = False) -> None:
        """Keep the contents of this used block when its last reference is released.

        Args:
            brief: the contents are short-lived: evict this block before other cached ones.
        """
        self._kept.add(block)
        if brief:
            self._brief.add(block)

    def forget(self, block: int) -> None:
        """Stop keeping the contents of this block; if it is cached, it becomes free."""
        # A used block stays with the tables that refer to it, and becomes free with the last reference.
        if self._cached_queue(block).pop(block, None) is not None:
            self._free.append(block)
        self._kept.remove(block)
        self._brief.discard(block)

    def drop_before(self, time: float) -> None:
        """Evict blocks that became cached before this time."""
        for queue in (self._cached_brief, self._cached):
            while queue and next(iter(queue.values())) < time:
                self._free.append(self._evict(queue))

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Check that every block is accounted for once, and reference counts match all block tables.

        Raises:
            IntegrityError: a block is lost, listed twice, or its reference count is wrong.
        """
        counts = Counter(block for table in tables for block in table)
        unused = {*self._free, *self._cached, *self._cached_brief}
        if len(unused) != self.available or len(unused) + len(counts) != self.total or unused & counts.keys():
            raise IntegrityError(
                f"{len(counts)} used + {self.cached} cached + {self.free} free blocks do not partition {self.total}"
            )
        if any(self._references[block] != count for block, count in counts.items()):
            raise IntegrityError("a block's reference count differs from the number of block tables that hold it")
        if sum(self._references) != counts.total() or not self._kept.issuperset((*self._cached, *self._cached_brief)):
            raise IntegrityError("an unused block is referenced, or a cached block is not marked to be kept")
        if not self._kept.isdisjoint(self._free) or not self._kept.issuperset(self._brief):
            raise IntegrityError("a free block is marked to be kept")

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._evict(self._cached_brief or self._cached)
        self._references[block] = 1
        return block

    def _evict(self, queue: OrderedDict[int, float]) -> int:
        block, cached_at = queue.popitem(last=False)
        self._kept.remove(block)
        self._brief.discard(block)
        # Between two owners: the prefix cache may have the contents copied out before the next one writes.
        self.on_evict(block, cached_at)
        return block

    def _retire(self, block: int) -> None:
        if block in self._kept:
            self._cached_queue(block)[block] = self.now
        else:
            self._free.append(block)

    def _cached_queue(self, block: int) -> OrderedDict[int, float]:
        """Return the queue that holds this kept block while it is cached."""
        return self._cached_brief if block in self._brief else self._cached


def _nothing(block: int, cached_at: float) -> None:
    """Do nothing: no prefix cache is attached."""
