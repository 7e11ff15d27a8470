"""Who holds which block of the KV pool."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence


class IntegrityError(RuntimeError):
    """The state of the KV pool contradicts itself: a defect of the engine."""


class BlockPool:
    """Owns the blocks: each is used (referenced by block tables), cached (unused, its contents kept) or free.

    A block that was marked with `keep` becomes cached instead of free when its last reference goes. Cached blocks
    are handed out when no free one is left: those that are kept for a while first, then least recently used first.

    Attributes:
        block_size: tokens that one block holds.
        on_evict: called with a kept block just before its contents are given up, and the date that it was cached at.
        date: what blocks that become cached are dated with.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.on_evict: Callable[[int, float], None] = _nothing
        self._references = [0] * num_blocks
        self._free = list(reversed(range(num_blocks)))
        self.date = 0.0
        self._cached: OrderedDict[int, float] = OrderedDict()
        self._passing: OrderedDict[int, float] = OrderedDict()
        self._kept: set[int] = set()
        self._brief: set[int] = set()

    @property
    def total(self) -> int:
        """Blocks in all."""
        return len(self._references)

    @property
    def free(self) -> int:
        """Blocks without contents worth keeping."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Unused blocks whose contents are kept."""
        return len(self._cached) + len(self._passing)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out."""
        return len(self._free) + self.cached

    @property
    def used(self) -> int:
        """Blocks that block tables refer to."""
        return self.total - self.available

    def blocks_for(self, tokens: int) -> int:
        """Blocks that this many tokens take."""
        return -(-tokens // self.block_size)

    def can_allocate(self, count: int, shared: Iterable[int] = ()) -> bool:
        """Whether count blocks are left after the blocks in shared were taken with `share`."""
        return self.available - sum(not self._references[block] for block in shared) >= count

    def allocate(self, count: int) -> list[int]:
        """Count blocks with one reference each; ask `can_allocate` first.

        Raises:
            IntegrityError: there are not that many.
        """
        if count > self.available:
            raise IntegrityError(f"{count} blocks were taken where {self.available} are available")
        return [self._take() for _ in range(count)]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these used or cached blocks."""
        for block in blocks:
            if not self._references[block]:
                del self._line(block)[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a table."""
        # From the end, so that the tail of a prefix is evicted before its head: without its head it is of no use.
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._retire(block)

    def keep(self, block: int, *, brief: bool = False) -> None:
        """The contents of this used block are worth keeping from now on.

        Args:
            brief: for a while only: others go before them.
        """
        self._kept.add(block)
        if brief:
            self._brief.add(block)

    def forget(self, block: int) -> None:
        """The contents of this kept block are of no use any more."""
        if self._line(block).pop(block, None) is not None:
            self._free.append(block)
        self._kept.remove(block)
        self._brief.discard(block)

    def drop_before(self, date: float) -> None:
        """Give up the contents of blocks that became cached before this date."""
        for line in (self._passing, self._cached):
            while line and next(iter(line.values())) < date:
                self._free.append(self._evict(line))

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Check that every block is counted once, and that references match all block tables there are.

        Raises:
            IntegrityError: a block is lost, counted twice, or has another number of references than tables hold it.
        """
        counts = Counter(block for table in tables for block in table)
        unused = {*self._free, *self._cached, *self._passing}
        if len(unused) != self.available or len(unused) + len(counts) != self.total or unused & counts.keys():
            raise IntegrityError(
                f"{len(counts)} used + {self.cached} cached + {self.free} free blocks are not {self.total}, each once"
            )
        if any(self._references[block] != count for block, count in counts.items()):
            raise IntegrityError("a block has another number of references than block tables that hold it")
        if sum(self._references) != counts.total() or not self._kept.issuperset((*self._cached, *self._passing)):
            raise IntegrityError("an unused block is referenced, or is cached without contents to keep")
        if not self._kept.isdisjoint(self._free) or not self._kept.issuperset(self._brief):
            raise IntegrityError("a free block has contents to keep")

    def _take(self) -> int:
        block = self._free.pop() if self._free else self._evict(self._passing or self._cached)
        self._references[block] = 1
        return block

    def _evict(self, line: OrderedDict[int, float]) -> int:
        block, date = line.popitem(last=False)
        self._kept.remove(block)
        self._brief.discard(block)
        self.on_evict(block, date)
        return block

    def _retire(self, block: int) -> None:
        if block in self._kept:
            self._line(block)[block] = self.date
        else:
            self._free.append(block)

    def _line(self, block: int) -> OrderedDict[int, float]:
        """Where a kept block waits while it is cached."""
        return self._passing if block in self._brief else self._cached


def _nothing(block: int, date: float) -> None:
    """Nobody keeps account of contents."""
