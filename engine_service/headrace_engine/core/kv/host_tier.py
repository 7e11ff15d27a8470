"""Host tier: host memory that keeps the contents of blocks evicted from the pool.

The tier decides which copies are needed but does not perform them: `take_copies` hands the pending list to the core,
which must perform it before the next step writes to the pool. A host block to be read stays reserved until then.

Nothing weighs a copy against computing again: a token of Llama 3.1 8B is 128 KiB, 3 µs of a PCIe 5 bus, and 20 µs of
products on an H100; one of SmolLM2-135M 0.5 µs and 0.3. On a CPU a copy wins everywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from headrace_engine.core.kv.block_pool import IntegrityError
from headrace_engine.core.runner import NO_COPIES, BlockCopies


class HostTier:
    """Owns the blocks in host memory, and the list of copies to perform before the next step.

    A host block is free or holds contents. Contents leave when they are fetched back into the pool, forgotten, too
    old, or, least recently used first, evicted for newer ones.

    Args:
        num_blocks: number of host blocks; 0 disables the tier.

    Attributes:
        on_evict: called with a host block whose contents are evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        self.total = num_blocks
        self.on_evict: Callable[[int], None] = lambda block: None
        self._free = list(reversed(range(num_blocks)))
        self._holding: OrderedDict[int, float] = OrderedDict()
        self._arriving: dict[int, int] = {}  # Host block: pool block to copy from, before the next step.
        self._leaving: dict[int, int] = {}  # Host block: pool block to copy to, before the next step.

    @property
    def used(self) -> int:
        """Number of blocks that hold contents."""
        return len(self._holding)

    def accept(self, source: int, date: float) -> int | None:
        """Take over the contents of a pool block that the next step overwrites.

        Args:
            date: time the contents were last used; not earlier than that of any block accepted before.

        Returns:
            The host block that holds the contents from now on; None if the tier has no blocks left.
        """
        if not self._free and not self._holding:
            return None
        block = self._free.pop() if self._free else self._evict()
        self._holding[block] = date
        # The pool block goes to its next owner, which writes to it in the next step: only this copy saves the contents.
        self._arriving[block] = source
        return block

    def reserve(self, blocks: Iterable[int]) -> None:
        """Exempt these blocks from eviction: they are about to be fetched, which may itself evict pool blocks."""
        for block in blocks:
            del self._holding[block]

    def fetch(self, block: int, target: int) -> None:
        """Schedule the copy of a reserved block into a pool block; the host block is free afterwards."""
        self._leaving[block] = target

    def forget(self, block: int) -> None:
        """Drop the contents of this block, whose copy has completed."""
        del self._holding[block]
        self._free.append(block)

    def drop_before(self, date: float) -> None:
        """Evict contents that were last used before this time."""
        while self._holding and next(iter(self._holding.values())) < date:
            self._free.append(self._evict())

    def take_copies(self) -> BlockCopies:
        """Return the copies due before the next step. The caller must perform them even if the step fails."""
        if not (self._arriving or self._leaving):
            return NO_COPIES
        to_host = [(source, block) for block, source in self._arriving.items()]
        copies = BlockCopies(to_host, list(self._leaving.items()))
        self._free += self._leaving  # Not earlier: a block still to be read must not receive an evicted one.
        self._arriving, self._leaving = {}, {}
        return copies

    def check_integrity(self, known: Sequence[int]) -> None:
        """Check that every host block is accounted for once, and that the prefix cache knows exactly the used ones.

        Args:
            known: host blocks that the prefix cache refers to.

        Raises:
            IntegrityError: a block is lost, listed twice or unknown to the prefix cache, or copies are pending.
        """
        if sorted([*self._free, *self._holding]) != list(range(self.total)):
            raise IntegrityError(f"{self.used} used + {len(self._free)} free host blocks do not partition {self.total}")
        if sorted(known) != sorted(self._holding):
            raise IntegrityError("the prefix cache and the host tier disagree on which host blocks are used")
        if self._arriving or self._leaving:
            raise IntegrityError(f"{len(self._arriving)} + {len(self._leaving)} copies were never performed")

    def _evict(self) -> int:
        block, _ = self._holding.popitem(last=False)
        # If it was never filled, it need not be: the block goes to other contents, or to none.
        self._arriving.pop(block, None)
        self.on_evict(block)
        return block
