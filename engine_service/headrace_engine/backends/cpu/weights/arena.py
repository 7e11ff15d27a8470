"""One piece of memory for all packed matrices of a model, or one on each memory node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import ALIGNMENT, Cpu, Matrix, Memory, PackedMatrix

_HUGE_PAGE = 1 << 21
"""Nodes share no page."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A matrix in an arena.

    Attributes:
        offset: of its shard in the piece of each node.
        position: of its first byte where all matrices follow one another, each whole.
        nbytes: of all of it.
    """

    matrix: Matrix
    offset: int
    position: int
    nbytes: int


class Arena:
    """Packed matrices one after the other, by name. Where there are several nodes each has a shard of every matrix.

    Args:
        cpu: whose nodes hold them.
        capacity: bytes that they take on each node at most; what is never written takes no memory.
    """

    def __init__(self, cpu: Cpu, capacity: int) -> None:
        self._cpu = cpu
        self._stride = room_for(max(1, capacity), _HUGE_PAGE)
        self._memory = Memory(cpu.native, self._stride * cpu.nodes)
        self._placed: dict[str, Placed] = {}
        self._used = self._end = 0

    @property
    def used(self) -> int:
        """Bytes of all matrices."""
        return self._used

    @property
    def placed(self) -> Mapping[str, Placed]:
        """Where each matrix lies."""
        return self._placed

    def place(self, name: str, matrix: Matrix) -> PackedMatrix:
        """Room for one more matrix, not yet written: memory of the nodes that its shards belong to."""
        packed = self._packed(matrix, self._end)
        nbytes = matrix.packed_bytes(self._cpu.native)
        self._placed[name] = Placed(matrix, self._end, self._used, nbytes)
        if self._cpu.nodes > 1:
            self._cpu.touch(self._memory, self._end, packed.nbytes, self._stride)
        self._end += room_for(packed.nbytes)
        self._used += room_for(nbytes)
        return packed

    def matrices(self) -> Iterator[tuple[str, PackedMatrix]]:
        """Every matrix by name."""
        for name, placed in self._placed.items():
            yield name, self._packed(placed.matrix, placed.offset)

    def bytes_of(self, placed: Placed) -> list[NDArray[np.uint8]]:
        """The bytes of a matrix, in order, in as many pieces as there are shards; not to be touched after close()."""
        shard = self._packed(placed.matrix, placed.offset).nbytes
        starts = range(0, placed.nbytes, shard)
        return [
            self._memory.view(placed.offset + node * self._stride, min(shard, placed.nbytes - start))
            for node, start in enumerate(starts)
        ]

    def clear(self) -> None:
        """Forget all matrices."""
        self._placed.clear()
        self._used = self._end = 0

    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
        self._memory.close()

    def _packed(self, matrix: Matrix, offset: int) -> PackedMatrix:
        return PackedMatrix(self._cpu.native, matrix, self._memory, offset, shards=self._cpu.nodes, stride=self._stride)


def room_for(nbytes: int, multiple: int = ALIGNMENT) -> int:
    """Bytes that a matrix takes in an arena."""
    return -(-nbytes // multiple) * multiple
