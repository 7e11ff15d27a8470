"""Host memory behind the pool: where the contents of evicted blocks lie until they are asked for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from headrace_engine.core.kv.block_pool import IntegrityError
from headrace_engine.core.runner import NO_COPIES, BlockCopies


class HostTier:
    """Owns the blocks in host memory, and the list of what is to be copied before the next step.

    Each of its blocks holds contents or is free. Contents leave it when they are fetched back into the pool, when
    nobody wants them any more, or, least recently evicted first, when others need the room.

    Args:
        num_blocks: 0: nothing is ever held.

    Attributes:
        on_evict: called with a block whose contents are given up for others, or for their age.
    """

    def __init__(self, num_blocks: int) -> None:
        self.total = num_blocks
        self.on_evict: Callable[[int], None] = lambda block: None
        self._free = list(reversed(range(num_blocks)))
        self._holding: OrderedDict[int, float] = OrderedDict()
        self._arriving: dict[int, int] = {}  # By host block: what the next step copies into it, or out of it.
        self._leaving: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks that hold contents."""
        return len(self._holding)

    def accept(self, source: int, date: float) -> int | None:
        """Take over what a block of the pool holds, which is overwritten in the next step.

        Args:
            date: when that was last used; not before the date of anything accepted earlier.

        Returns:
            The block that holds it from now on; None: there is no room.
        """
        if not self._free and not self._holding:
            return None
        block = self._free.pop() if self._free else self._evict()
        self._holding[block] = date
        self._arriving[block] = source
        return block

    def reserve(self, blocks: Iterable[int]) -> None:
        """Give these to nobody: they are fetched next, with room that evictions make."""
        for block in blocks:
            del self._holding[block]

    def fetch(self, block: int, target: int) -> None:
        """Copy a reserved block into one of the pool before the next step; then it is free."""
        self._leaving[block] = target

    def forget(self, block: int) -> None:
        """What this block holds, and was copied into it, is of no use any more."""
        del self._holding[block]
        self._free.append(block)

    def drop_before(self, date: float) -> None:
        """Give up contents that were last used before this date."""
        while self._holding and next(iter(self._holding.values())) < date:
            self._free.append(self._evict())

    def take_copies(self) -> BlockCopies:
        """What is to be copied before the next step. Whoever takes it copies it, whatever becomes of the step."""
        if not (self._arriving or self._leaving):
            return NO_COPIES
        to_host = [(source, block) for block, source in self._arriving.items()]
        copies = BlockCopies(to_host, list(self._leaving.items()))
        self._free += self._leaving  # Only now: what comes back is read after all that goes out was written.
        self._arriving, self._leaving = {}, {}
        return copies

    def check_integrity(self, known: Sequence[int]) -> None:
        """Check that every block is counted once, and that those with contents match the prefix cache.

        Raises:
            IntegrityError: a block is lost or counted twice, or holds what nobody can find; or copies were forgotten.
        """
        if sorted([*self._free, *self._holding]) != list(range(self.total)):
            raise IntegrityError(
                f"{self.used} used + {len(self._free)} free host blocks are not {self.total}, each once"
            )
        if sorted(known) != sorted(self._holding):
            raise IntegrityError("a host block holds what nobody knows, or somebody knows what none holds")
        if self._arriving or self._leaving:
            raise IntegrityError(f"{len(self._arriving)} + {len(self._leaving)} blocks were never copied")

    def _evict(self) -> int:
        block, _ = self._holding.popitem(last=False)
        self._arriving.pop(block, None)
        self.on_evict(block)
        return block
