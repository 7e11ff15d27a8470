"""One allocation for all packed matrices of a model, or one per memory node. The arena owns it until close()."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import ALIGNMENT, Cpu, Matrix, Memory, PackedMatrix

_HUGE_PAGE = 1 << 21
"""Alignment of each node's memory: nodes share no page."""


@dataclass(frozen=True, slots=True)
class ArenaMatrix:
    """A matrix in an arena.

    Attributes:
        offset: offset of its shard in the memory of each node.
        position: offset of its first byte if all matrices are stored contiguously, unsharded.
        nbytes: size of the whole matrix.
    """

    matrix: Matrix
    offset: int
    position: int
    nbytes: int


class Arena:
    """Contiguous packed matrices by name. With several nodes, each holds a shard of every matrix.

    Args:
        cpu: its nodes hold the matrices.
        capacity: maximum bytes on each node; pages that are never written take no memory.
    """

    def __init__(self, cpu: Cpu, capacity: int) -> None:
        self._cpu = cpu
        self._stride = aligned(max(1, capacity), _HUGE_PAGE)
        self._memory = Memory(cpu.native, self._stride * cpu.nodes)
        self._entries: dict[str, ArenaMatrix] = {}
        self._used = self._end = 0

    @property
    def used(self) -> int:
        """Bytes of all matrices."""
        return self._used

    @property
    def entries(self) -> Mapping[str, ArenaMatrix]:
        """All matrices by name."""
        return self._entries

    def add(self, name: str, matrix: Matrix) -> PackedMatrix:
        """Reserve memory for one more matrix, each shard on its node; the caller writes it."""
        packed = self._packed(matrix, self._end)
        nbytes = matrix.packed_bytes(self._cpu.native)
        self._entries[name] = ArenaMatrix(matrix, self._end, self._used, nbytes)
        if self._cpu.nodes > 1:
            self._cpu.touch(self._memory, self._end, packed.nbytes, self._stride)
        self._end += aligned(packed.nbytes)
        self._used += aligned(nbytes)
        return packed

    def matrices(self) -> Iterator[tuple[str, PackedMatrix]]:
        """All matrices by name."""
        for name, entries in self._entries.items():
            yield name, self._packed(entries.matrix, entries.offset)

    def bytes_of(self, entries: ArenaMatrix) -> list[NDArray[np.uint8]]:
        """Return views of a matrix's bytes, in order, one per shard; they must not be used after close()."""
        shard = self._packed(entries.matrix, entries.offset).nbytes
        starts = range(0, entries.nbytes, shard)
        return [
            self._memory.view(entries.offset + node * self._stride, min(shard, entries.nbytes - start))
            for node, start in enumerate(starts)
        ]

    def clear(self) -> None:
        """Remove all matrices."""
        # The memory stays, for other matrices: those handed out before must not be used any more.
        self._entries.clear()
        self._used = self._end = 0

    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
        self._memory.close()

    def _packed(self, matrix: Matrix, offset: int) -> PackedMatrix:
        return PackedMatrix(self._cpu.native, matrix, self._memory, offset, shards=self._cpu.nodes, stride=self._stride)


def aligned(nbytes: int, multiple: int = ALIGNMENT) -> int:
    """Round nbytes up to a multiple."""
    return -(-nbytes // multiple) * multiple
