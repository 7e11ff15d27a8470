"""Random quantized weights, in the formats of `weight_quant`, packed for the kernels of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from headrace_engine.backend_choices import WEIGHT_GROUPS
from headrace_engine.backends.cpu.weights.quantize import quantized_matrix
from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.weights.fused import sharing_input
from headrace_engine.backends.cuda.weights.quantized import QuantizedWeight
from headrace_engine.config import WeightQuant
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.tensor_shapes import expected_shapes
from headrace_engine.native import Dtype, Format, Matrix, MatrixRows
from headrace_engine.native.quantized import QuantizedMatrix

_TABLES = ("embed", "head")
_ROWS_AT_ONCE = 1024
_CODES = {Format.INT8: 256, Format.INT4: 16}
_BYTES = {Format.INT8: 1.0, Format.INT4: 0.5}
_SCALE_BYTES = 2


def quantized_bytes(shapes: Mapping[str, tuple[int, ...]], weights: WeightQuant) -> float:
    """Return the bytes of quantized matrices and their scales, without padding."""
    matrices = [_matrix(name, *shape, weights) for name, shape in shapes.items() if len(shape) == 2]
    return sum(
        matrix.outputs * (_BYTES[matrix.format] * matrix.inputs + _SCALE_BYTES * (1 + matrix.offsets) * matrix.groups)
        for matrix in matrices
    )


def quantized_weights(spec: DecoderSpec, device: Device, weights: WeightQuant) -> dict[str, QuantizedWeight]:
    """Return all matrices of a decoder by name, those that share their input as one.

    Layers have equal values, each in memory of its own: only the first is packed.
    """
    shapes = {name: shape for name, shape in expected_shapes(spec).items() if len(shape) == 2}
    together = list(sharing_input(spec, shapes))
    shared = {name for names in together for name in names}
    packed: dict[Matrix, _Packed] = {}
    found: dict[str, QuantizedWeight] = {}
    for names in [*together, *([name] for name in shapes if name not in shared)]:
        sizes = [shapes[name][0] for name in names]
        matrix = _matrix(names[0], sum(sizes), shapes[names[0]][1], weights)
        if matrix not in packed:
            packed[matrix] = _pack(device, matrix)
        whole = packed[matrix].weight(sizes)
        found.update(dict.fromkeys(names, whole))
    return found


@dataclass(frozen=True)
class _Packed:
    quantized: QuantizedMatrix
    data: torch.Tensor

    def weight(self, sizes: Sequence[int]) -> QuantizedWeight:
        return QuantizedWeight(self.quantized, self.data.clone(), sizes)


def _matrix(name: str, outputs: int, inputs: int, weights: WeightQuant) -> Matrix:
    eight = weights is WeightQuant.INT8 or name in _TABLES
    kind = Format.INT8 if eight else Format.INT4
    return quantized_matrix(outputs, inputs, kind, WEIGHT_GROUPS[weights], Dtype.FLOAT16)


def _pack(device: Device, matrix: Matrix) -> _Packed:
    quantized = QuantizedMatrix(device.native, matrix, Dtype.BFLOAT16)
    host = torch.empty(quantized.nbytes, dtype=torch.uint8)

    def pack(first: int) -> None:
        count = min(_ROWS_AT_ONCE, matrix.outputs - first)
        quantized.pack(host.data_ptr(), _rows(matrix, count, first), first)

    with ThreadPoolExecutor() as threads:
        list(threads.map(pack, range(0, matrix.outputs, _ROWS_AT_ONCE)))
    return _Packed(quantized, host.to(device.torch))


def _rows(matrix: Matrix, count: int, seed: int) -> MatrixRows:
    """Return weights around zero that preserve the norm of vectors they are multiplied with."""
    codes = _CODES[matrix.format]
    # The standard deviation of equally likely codes is codes ÷ √12.
    scale = 12**0.5 / codes * matrix.inputs**-0.5
    numbers = np.random.default_rng(seed).integers(0, codes, (count, matrix.inputs), dtype=np.uint8)
    scales = np.full((count, matrix.groups), scale, dtype=np.float32)
    offsets = np.full_like(scales, -scale * (codes - 1) / 2) if matrix.offsets else None
    return MatrixRows(numbers, scales, offsets)
