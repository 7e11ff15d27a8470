"""One piece of memory for all packed matrices of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import ALIGNMENT, Matrix, Memory, Native, PackedMatrix


@dataclass(frozen=True, slots=True)
class Placed:
    """A matrix in an arena: how it is stored, and its bytes from offset on."""

    matrix: Matrix
    offset: int
    nbytes: int


class Arena:
    """Packed matrices one after the other, by name.

    Args:
        native: core_cpu.
        capacity: bytes that they take at most; what is never written takes no memory.
    """

    def __init__(self, native: Native, capacity: int) -> None:
        self._native = native
        self._memory = Memory(native, max(1, capacity))
        self._placed: dict[str, Placed] = {}
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes of all matrices."""
        return self._used

    @property
    def placed(self) -> Mapping[str, Placed]:
        """Where each matrix lies."""
        return self._placed

    def place(self, name: str, matrix: Matrix) -> PackedMatrix:
        """Room for one more matrix, not yet written."""
        packed = PackedMatrix(self._native, matrix, self._memory, self._used)
        self._placed[name] = Placed(matrix, self._used, packed.nbytes)
        self._used += room_for(packed.nbytes)
        return packed

    def matrices(self) -> Iterator[tuple[str, PackedMatrix]]:
        """Every matrix by name."""
        for name, placed in self._placed.items():
            yield name, PackedMatrix(self._native, placed.matrix, self._memory, placed.offset)

    def bytes_of(self, placed: Placed) -> NDArray[np.uint8]:
        """The bytes of a matrix; not to be touched after close()."""
        return self._memory.view(placed.offset, placed.nbytes)

    def clear(self) -> None:
        """Forget all matrices."""
        self._placed.clear()
        self._used = 0

    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
        self._memory.close()


def room_for(nbytes: int) -> int:
    """Bytes that a matrix takes in an arena."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
