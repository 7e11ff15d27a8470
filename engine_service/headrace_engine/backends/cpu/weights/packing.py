"""Packs the files of a model into matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.backends.cpu.weights.arena import Arena, aligned
from headrace_engine.backends.cpu.weights.rows import Orders, TensorRows, orders_of
from headrace_engine.backends.cpu.weights.storage import (
    Storage,
    block_rows,
    chosen_rows,
    cut_rows,
    float_rows,
    joined,
    quantized_rows,
)
from headrace_engine.core.runner import Progress
from headrace_engine.errors import InvalidArgument
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.files import ModelFiles, TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Cpu, Format, Matrix, MatrixRows, Memory, PackedMatrix

_VALUES_AT_ONCE = 2**21
"""Number of values unpacked at a time: intermediate arrays fit in a cache."""
_ROW_MULTIPLE = 64
"""Rows are packed in multiples of this."""

Part = Callable[[int, int], MatrixRows]
"""Return rows first to last − 1 of a matrix."""


@dataclass(frozen=True, slots=True)
class CpuWeights:
    """The weights of a decoder: packed matrices in an arena, and float32 vectors.

    Attributes:
        tensors: matrices and vectors by canonical name.
    """

    arena: Arena
    tensors: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        vectors = (tensor for tensor in self.tensors.values() if isinstance(tensor, np.ndarray))
        return self.arena.used + sum(vector.nbytes for vector in vectors)


class Packer:
    """Packs the matrices of a model into an arena.

    Args:
        cpu: its threads pack; as many Python threads unpack.
        files: the model.
        spec: its decoder.
        storage: storage of matrices.
        share: what this rank holds of them; None: there is one.

    Attributes:
        share: the same, cut by whole groups of inputs that share a scale.
    """

    def __init__(
        self, cpu: Cpu, files: ModelFiles, spec: DecoderSpec, storage: Storage, share: CpuShare | None = None
    ) -> None:
        self._cpu = cpu
        self._files = files
        self._spec = spec
        self._storage = storage
        self.share = None if share is None else self._by_groups(share)

    def capacity(self) -> int:
        """Return the maximum bytes of all matrices on each memory node."""
        native, nodes = self._cpu.native, self._cpu.nodes
        return sum(aligned(matrix.packed_bytes(native, nodes)) for matrix in self.matrices().values())

    def matrices(self) -> Mapping[str, Matrix]:
        """Return the storage of each matrix, or its upper bound.

        Raises:
            InvalidArgument: a rank would hold a part of a group.
        """
        found = [info for info in self._infos() if len(info.shape) == 2]
        return {info.name: self._held(info.name, self._storage.largest(info.name, self._open(info))) for info in found}

    def pack(self, arena: Arena, progress: Progress) -> None:
        """Read and pack all matrices.

        Raises:
            BadModel: a file has changed since it was opened, or values do not fit.
        """
        done = 0
        with ThreadPoolExecutor(self._cpu.threads, thread_name_prefix="headrace-unpack") as threads:
            for info in self._infos():
                if len(info.shape) == 2:
                    self._pack_one(arena, info, threads)
                done += info.stored.file_bytes
                progress(ModelPhase.LOADING, done, self._files.weight_bytes)

    def vectors(self) -> dict[str, NDArray[np.float32]]:
        """Return norms and biases by name.

        Raises:
            BadModel: a file has changed since it was opened.
        """
        found = [info for info in self._infos() if len(info.shape) == 1]
        return {info.name: self._open(info).floats(0, 1)[0] + np.float32(info.shift) for info in found}

    def row(self, name: str, number: int, matrix: Matrix) -> NDArray[np.float32]:
        """Return a row of a matrix, which another rank may hold.

        Args:
            matrix: storage of this rank's rows.

        Raises:
            BadModel: a file has changed since it was opened.
        """
        native, one = self._cpu.native, replace(matrix, outputs=1)
        tensor = TensorRows(self._files.tensors[name], Orders(rows=np.array([number])))
        # Packed and unpacked, so that it has the same rounding; `row` returns a copy, which outlives the memory.
        with closing(Memory(native, one.packed_bytes(native))) as memory:
            packed = PackedMatrix(native, one, memory)
            packed.pack(self._cpu, self._part(name, tensor)(0, 1))
            return packed.row(0)

    def _infos(self) -> list[TensorInfo]:
        """Return all tensors in the order of the files."""
        return sorted(self._files.tensors.values(), key=lambda info: (info.stored.file, info.stored.offset))

    def _open(self, info: TensorInfo) -> TensorRows:
        return TensorRows(
            info, orders_of(info, self._spec) if self.share is None else self.share.orders(info, self._spec)
        )

    def _pack_one(self, arena: Arena, info: TensorInfo, threads: ThreadPoolExecutor) -> None:
        name, kind = info.name, self._storage.quantizes(info.name)
        if kind is not None:
            matrix, rows = self._quantized(info, kind, threads)
            arena.add(name, matrix).pack(self._cpu, rows)
            return
        tensor = self._open(info)
        whole = self._storage.largest(name, tensor)
        packed = arena.add(name, self._held(name, whole))
        for first, rows in row_parts(tensor, self._cut(name, whole, self._part(name, tensor)), threads):
            packed.pack(self._cpu, rows, first)

    def _quantized(self, info: TensorInfo, kind: Format, threads: ThreadPoolExecutor) -> tuple[Matrix, MatrixRows]:
        """Quantize all rows, from which the type of scales follows, and return those that this rank holds."""
        tensor = TensorRows(info, orders_of(info, self._spec))
        found = [rows for _, rows in row_parts(tensor, self._part(info.name, tensor), threads)]
        matrix, rows = joined(tensor, kind, self._storage.group, found)
        columns = self._columns(info.name, matrix)
        if columns is not None:
            return self._held(info.name, matrix), cut_rows(rows, columns, matrix.group)
        held = None if self.share is None else self.share.rows(info, tensor.outputs)
        if held is None:
            return matrix, rows
        return replace(matrix, outputs=len(held)), chosen_rows(rows, held)

    def _by_groups(self, share: CpuShare) -> CpuShare:
        """Return the share with units that are whole groups of the inputs that it cuts."""
        cut = [info for info in self._infos() if len(info.shape) == 2 and share.is_added(info.name)]
        wholes = ((info.name, TensorRows(info, orders_of(info, self._spec))) for info in cut)
        groups = {self._storage.largest(name, whole).group for name, whole in wholes}
        return replace(share, unit=lcm(share.unit, *(group for group in groups if group)))

    def _columns(self, name: str, whole: Matrix) -> slice | None:
        """Return the columns that this rank holds; None: all.

        Raises:
            InvalidArgument: they divide a group.
        """
        columns = None if self.share is None else self.share.columns(name, whole.inputs)
        if columns is None or self.share is None:
            return None
        width = columns.stop - columns.start
        if whole.group and width % whole.group:
            text = (
                f"= REDUCED gives each of {self.share.size} ranks {width} inputs of {name}, of whose weights "
                f"{whole.group} share a scale; allowed: EXACT"
            )
            raise InvalidArgument.field("config.tensor_parallel_mode", text)
        return columns

    def _held(self, name: str, whole: Matrix) -> Matrix:
        """Return the storage of the columns that this rank holds."""
        columns = self._columns(name, whole)
        return whole if columns is None else replace(whole, inputs=columns.stop - columns.start)

    def _cut(self, name: str, whole: Matrix, part: Part) -> Part:
        """Return what reads the columns that this rank holds."""
        columns = self._columns(name, whole)
        if columns is None:
            return part
        return lambda first, last: cut_rows(part(first, last), columns, whole.group)

    def _part(self, name: str, tensor: TensorRows) -> Part:
        """Return what reads rows of a matrix in its storage."""
        kind = self._storage.quantizes(name)
        if kind is not None:
            return partial(quantized_rows, tensor, kind, self._storage.group)
        if self._storage.takes_blocks(name, tensor):
            return partial(block_rows, tensor)
        return partial(float_rows, tensor, self._storage.numbers(name))


def row_parts(tensor: TensorRows, part: Part, threads: ThreadPoolExecutor) -> Iterator[tuple[int, MatrixRows]]:
    """Yield the rows of a matrix in parts, each with the index of its first row, a multiple of 64."""
    step = max(1, _VALUES_AT_ONCE // tensor.inputs // _ROW_MULTIPLE) * _ROW_MULTIPLE
    bounds = list(pairwise([*range(0, tensor.outputs, step), tensor.outputs]))
    found = threads.map(lambda pair: part(*pair), bounds)
    return zip((first for first, _ in bounds), found, strict=True)
