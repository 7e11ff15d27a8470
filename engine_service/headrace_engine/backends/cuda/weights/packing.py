"""Loads a model's files onto a device: weights as numbers, or quantized as on the cpu backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cpu.weights.packing import row_parts
from headrace_engine.backends.cpu.weights.rows import TensorRows, orders_of
from headrace_engine.backends.cpu.weights.storage import Storage, all_rows, block_rows, joined, quantized_rows
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.weights.activations import takes_quantized_rows
from headrace_engine.backends.cuda.weights.files import DeviceContents, layout_of
from headrace_engine.backends.cuda.weights.fused import sharing_input, side_by_side
from headrace_engine.backends.cuda.weights.quantized import QuantizedWeight
from headrace_engine.backends.cuda.weights.row_packing import SCALE_BYTES, fp8_weight, int8_weight
from headrace_engine.backends.cuda.weights.row_products import RowQuantizedWeight
from headrace_engine.backends.weight_cache import WeightCache, cache_folder, cache_key
from headrace_engine.config import ModelFormat, WeightQuant
from headrace_engine.core.runner import Progress
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.files import ModelFiles, TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.weights import read_tensor
from headrace_engine.native import Dtype, Format, Matrix, MatrixRows
from headrace_engine.native.abi import RowCodes
from headrace_engine.native.quantized import QuantizedMatrix

_GROUPS = (0, 32, 64, 128)
"""Supported numbers of weights per scale; 0: a whole row."""

_WIDENED_ZERO = 128
"""Code of 0 where codebook values are stored as 8-bit codes."""
_ROWS_AT_ONCE = 1024
"""Number of rows that a thread packs at a time, a multiple of 64."""

_Quantized = tuple[Matrix, MatrixRows]
_Packed = tuple[str, QuantizedWeight | RowQuantizedWeight]


class Packer:
    """Packs and uploads the weights of a model to a device.

    Args:
        device: the device.
        files: the model.
        spec: its decoder.
        storage: storage of matrices.
        threads: number of threads that read, quantize and pack.
        rows: code type of activations in products of layers, and then of their weights too; None: numbers.
    """

    def __init__(
        self,
        device: Device,
        files: ModelFiles,
        spec: DecoderSpec,
        storage: Storage,
        threads: int,
        rows: RowCodes | None = None,
    ) -> None:
        self._device = device
        self._files = files
        self._spec = spec
        self._storage = storage
        self._threads = threads
        self._rows = rows
        self._quantized = {
            name: info
            for name, info in files.tensors.items()
            if self._of_rows(info) is not None or self._matrix(info) is not None
        }
        self._done = 0

    def needed(self) -> int:
        """Return the maximum size of all weights, in bytes."""
        return sum(self._max_bytes(info) for info in self._files.tensors.values())

    def pack(self, progress: Progress) -> Mapping[str, Any]:
        """Return tensors and quantized weights by canonical name; matrices that share their input are stacked.

        Raises:
            BadModel: a file has changed since it was opened, or a weight is not finite.
        """
        progress(ModelPhase.LOADING, 0, self._files.weight_bytes)
        numbers: dict[str, Tensor] = {}
        for name, info in self._files.tensors.items():
            if name not in self._quantized:
                numbers[name] = read_tensor(info, torch.bfloat16, self._device.torch)
                self._report(info, progress)
        side_by_side(numbers, self._spec)
        return {**numbers, **self._cached_or_packed(progress)}

    def _cached_or_packed(self, progress: Progress) -> Mapping[str, QuantizedWeight | RowQuantizedWeight]:
        """Return quantized weights, from the cache if possible.

        Not cached are FP8, which is quantized as fast as it is read, and codes that files of ours hold already.
        """
        ours = self._files.format is ModelFormat.HEADRACE and self._storage.quant is WeightQuant.NONE
        if not self._quantized or self._rows is RowCodes.FP8 or ours:
            return self._packed(progress)
        cache = WeightCache(cache_folder())
        key = cache_key(self._files, self._storage, layout_of(self._rows))
        cached = DeviceContents(self._device, {})
        if cache.read(key, cached, self._threads):
            progress(ModelPhase.LOADING, self._files.weight_bytes, self._files.weight_bytes)
            return cached.weights
        packed = self._packed(progress)
        cache.write(key, DeviceContents(self._device, packed))
        return packed

    def _packed(self, progress: Progress) -> Mapping[str, QuantizedWeight | RowQuantizedWeight]:
        quantized: dict[str, QuantizedWeight | RowQuantizedWeight] = {}
        with ThreadPoolExecutor(self._threads, thread_name_prefix="headrace-pack") as threads:
            for names in self._together():
                quantized.update(self._pack_together(names, threads, progress))
        return quantized

    def _together(self) -> Iterator[list[str]]:
        """Yield the names of all quantized matrices, grouped as they are stacked."""
        shared = list(sharing_input(self._spec, self._quantized))
        yield from shared
        apart = self._quantized.keys() - {name for names in shared for name in names}
        yield from ([name] for name in sorted(apart))

    def _pack_together(
        self, names: Sequence[str], threads: ThreadPoolExecutor, progress: Progress
    ) -> Iterator[_Packed]:
        infos = [self._quantized[name] for name in names]
        kind = self._of_rows(infos[0])
        parts = [] if kind is RowCodes.FP8 else [self._codes(info, threads) for info in infos]
        if kind is not None:
            of_rows = int8_weight(parts, self._device) if parts else fp8_weight(infos, self._device)
            yield from ((name, of_rows) for name in names)
        elif len({replace(matrix, outputs=1) for matrix, _ in parts}) == 1:
            whole = self._on_device(parts, threads)
            yield from ((name, whole) for name in names)
        else:
            yield from ((name, self._on_device([part], threads)) for name, part in zip(names, parts, strict=True))
        for info in infos:
            self._report(info, progress)

    def _codes(self, info: TensorInfo, threads: ThreadPoolExecutor) -> _Quantized:
        tensor, kind, group = self._open(info), self._storage.quantizes(info.name), self._storage.group
        if kind is not None:
            part = partial(quantized_rows, tensor, kind, group)
            return joined(tensor, kind, group, [rows for _, rows in row_parts(tensor, part, threads)])
        parts = row_parts(tensor, partial(block_rows, tensor), threads)
        return _without_codebook(self._storage.largest(info.name, tensor), all_rows([rows for _, rows in parts]))

    def _on_device(self, parts: Sequence[_Quantized], threads: ThreadPoolExecutor) -> QuantizedWeight:
        sizes = [matrix.outputs for matrix, _ in parts]
        matrix, rows = replace(parts[0][0], outputs=sum(sizes)), all_rows([rows for _, rows in parts])
        packed = QuantizedMatrix(self._device.native, matrix, Dtype.BFLOAT16)
        # Threads write disjoint rows of it; it is freed once the device has a copy.
        host = torch.empty(packed.nbytes, dtype=torch.uint8)

        def pack(first: int) -> None:
            packed.pack(host.data_ptr(), _some(rows, first, first + _ROWS_AT_ONCE), first)

        list(threads.map(pack, range(0, matrix.outputs, _ROWS_AT_ONCE)))
        return QuantizedWeight(packed, host.to(self._device.torch), sizes)

    def _of_rows(self, info: TensorInfo) -> RowCodes | None:
        """Return the code type of a tensor with a scale per output; None: it is not stored so."""
        return self._rows if self._rows is not None and takes_quantized_rows(info, self._rows) else None

    def _matrix(self, info: TensorInfo) -> Matrix | None:
        """Return the storage of a quantized tensor, or its upper bound; None: it is stored as numbers."""
        if len(info.shape) != 2 or ".experts." in info.name:
            return None
        tensor = self._open(info)
        if self._storage.quantizes(info.name) is None and not self._storage.takes_blocks(info.name, tensor):
            return None
        matrix = _widened(self._storage.largest(info.name, tensor))
        return matrix if matrix.group in _GROUPS else None

    def _max_bytes(self, info: TensorInfo) -> int:
        if self._of_rows(info) is not None:
            return int(np.prod(info.shape)) + info.shape[0] * SCALE_BYTES
        matrix = self._matrix(info)
        if matrix is None:
            return int(np.prod(info.shape)) * (torch.float32 if info.exact else torch.bfloat16).itemsize
        return QuantizedMatrix(self._device.native, matrix, Dtype.BFLOAT16).nbytes

    def _open(self, info: TensorInfo) -> TensorRows:
        return TensorRows(info, orders_of(info, self._spec))

    def _report(self, info: TensorInfo, progress: Progress) -> None:
        self._done += info.stored.file_bytes
        progress(ModelPhase.LOADING, self._done, self._files.weight_bytes)


def _widened(matrix: Matrix) -> Matrix:
    """Return the storage with codebook values, which are integers, as 8-bit codes."""
    return replace(matrix, format=Format.INT8, zero=_WIDENED_ZERO, codebook=()) if matrix.codebook else matrix


def _without_codebook(matrix: Matrix, rows: MatrixRows) -> _Quantized:
    if not matrix.codebook:
        return matrix, rows
    codes = (np.array(matrix.codebook) + _WIDENED_ZERO).astype(np.uint8)
    return _widened(matrix), replace(rows, numbers=codes[rows.numbers])


def _some(rows: MatrixRows, first: int, last: int) -> MatrixRows:
    scales, offsets = (None if part is None else part[first:last] for part in (rows.scales, rows.offsets))
    return MatrixRows(rows.numbers[first:last], scales, offsets)
