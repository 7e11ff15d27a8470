"""State of the draft model: how far sequences are computed, and the contents of the blocks of its pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_FIRST = 0
"""Digest of no ids."""


class WrittenBlocks:
    """Contents of each block of the draft model's pool, as last written: a digest of a sequence's ids up to its end.

    Blocks are those of the model's tables, so a sequence that finds its blocks in the prefix cache, or gets them back
    after a preemption, finds what was drafted with them as well. A wrong digest would cost drafts that do not hold.
    """

    def __init__(self) -> None:
        self._digests: dict[int, int] = {}

    def forget(self, blocks: Sequence[int]) -> None:
        """Note that these blocks are being written to."""
        for block in blocks:
            self._digests.pop(block, None)

    def note(self, block: int, digest: int) -> None:
        """Note that a block is full."""
        self._digests[block] = digest

    def holds(self, block: int, digest: int) -> bool:
        """Return True if a block was filled with these ids."""
        return self._digests.get(block) == digest


@dataclass(slots=True)
class DraftState:
    """How far the draft model has computed one sequence.

    Attributes:
        preemptions: of the sequence, when it was computed: then its blocks were others'.
        computed: number of its leading ids that are in the pool.
        tail: drafted ids after them that are in the pool too.
        blocks: the blocks that hold them all.
        digests: of the full blocks among those of `computed`.
    """

    preemptions: int
    computed: int = 0
    tail: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    @classmethod
    def find(
        cls, ids: Sequence[int], blocks: Sequence[int], size: int, written: WrittenBlocks, preemptions: int
    ) -> DraftState:
        """Return the state of a sequence by what its blocks of `size` tokens hold; its last id is never computed."""
        state, digest = cls(preemptions), _FIRST
        for number, block in enumerate(blocks[: (len(ids) - 1) // size]):
            digest = _digest(digest, ids[number * size : (number + 1) * size])
            if not written.holds(block, digest):
                break
            state.digests.append(digest)
            state.blocks.append(block)
        state.computed = len(state.digests) * size
        return state

    def holds(self, blocks: Sequence[int], preemptions: int) -> bool:
        """Return True if a sequence still has the blocks that were computed."""
        return preemptions == self.preemptions and blocks[: len(self.blocks)] == self.blocks

    def accept(self, ids: Sequence[int], size: int, written: WrittenBlocks) -> None:
        """Take the drafted ids that turned out to be the sequence's, and note its full blocks.

        Its last id counts as not computed, even if it was drafted: the next one is sampled after it.
        """
        computed = self.computed
        for draft, token_id in zip(self.tail, ids[computed:-1], strict=False):
            if draft != token_id:
                break
            computed += 1
        self.tail = []
        self.advance(ids, computed, size, written)

    def advance(self, ids: Sequence[int], computed: int, size: int, written: WrittenBlocks) -> None:
        """Note that this many ids were computed."""
        self.computed = computed
        for number in range(len(self.digests), computed // size):
            before = self.digests[-1] if self.digests else _FIRST
            self.digests.append(_digest(before, ids[number * size : (number + 1) * size]))
            written.note(self.blocks[number], self.digests[-1])


def _digest(before: int, ids: Sequence[int]) -> int:
    return hash((before, *ids))
