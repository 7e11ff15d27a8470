"""Packs the files of a model into matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.weights.arena import Arena, aligned
from headrace_engine.backends.cpu.weights.rows import TensorRows, orders_of
from headrace_engine.backends.cpu.weights.storage import (
    Storage,
    block_rows,
    float_rows,
    joined,
    quantized_rows,
)
from headrace_engine.core.runner import Progress
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.files import ModelFiles, TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Cpu, Matrix, MatrixRows

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
    """

    def __init__(self, cpu: Cpu, files: ModelFiles, spec: DecoderSpec, storage: Storage) -> None:
        self._cpu = cpu
        self._files = files
        self._spec = spec
        self._storage = storage

    def capacity(self) -> int:
        """Return the maximum bytes of all matrices on each memory node."""
        native, nodes = self._cpu.native, self._cpu.nodes
        return sum(aligned(matrix.packed_bytes(native, nodes)) for matrix in self.matrices().values())

    def matrices(self) -> Mapping[str, Matrix]:
        """Return the storage of each matrix, or its upper bound."""
        return {
            info.name: self._storage.largest(info.name, self._open(info))
            for info in self._infos()
            if len(info.shape) == 2
        }

    def pack(self, arena: Arena, progress: Progress) -> None:
        """Read and pack all matrices.

        Raises:
            BadModel: a file has changed since it was opened, or values do not fit.
        """
        done = 0
        with ThreadPoolExecutor(self._cpu.threads, thread_name_prefix="headrace-unpack") as threads:
            for info in self._infos():
                if len(info.shape) == 2:
                    self._pack_one(arena, info.name, self._open(info), threads)
                done += info.stored.nbytes
                progress(ModelPhase.LOADING, done, self._files.weight_bytes)

    def vectors(self) -> dict[str, NDArray[np.float32]]:
        """Return norms and biases by name.

        Raises:
            BadModel: a file has changed since it was opened.
        """
        found = [info for info in self._infos() if len(info.shape) == 1]
        return {info.name: self._open(info).floats(0, 1)[0] + np.float32(info.shift) for info in found}

    def _infos(self) -> list[TensorInfo]:
        """Return all tensors in the order of the files."""
        return sorted(self._files.tensors.values(), key=lambda info: (info.stored.file, info.stored.offset))

    def _open(self, info: TensorInfo) -> TensorRows:
        return TensorRows(info, orders_of(info, self._spec))

    def _pack_one(self, arena: Arena, name: str, tensor: TensorRows, threads: ThreadPoolExecutor) -> None:
        kind = self._storage.quantizes(name)
        if kind is not None:
            part: Part = partial(quantized_rows, tensor, kind, self._storage.group)
            matrix, rows = joined(
                tensor, kind, self._storage.group, [rows for _, rows in row_parts(tensor, part, threads)]
            )
            arena.add(name, matrix).pack(self._cpu, rows)
            return
        if self._storage.takes_blocks(name, tensor):
            part = partial(block_rows, tensor)
        else:
            part = partial(float_rows, tensor, self._storage.numbers(name))
        packed = arena.add(name, self._storage.largest(name, tensor))
        for first, rows in row_parts(tensor, part, threads):
            packed.pack(self._cpu, rows, first)


def row_parts(tensor: TensorRows, part: Part, threads: ThreadPoolExecutor) -> Iterator[tuple[int, MatrixRows]]:
    """Yield the rows of a matrix in parts, each with the index of its first row, a multiple of 64."""
    step = max(1, _VALUES_AT_ONCE // tensor.inputs // _ROW_MULTIPLE) * _ROW_MULTIPLE
    bounds = list(pairwise([*range(0, tensor.outputs, step), tensor.outputs]))
    found = threads.map(lambda pair: part(*pair), bounds)
    return zip((first for first, _ in bounds), found, strict=True)
