"""Storage of a model's tensors in memory, as chosen from the plan and the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.backends.cpu.weights.blocks import BlockType, QuantizedRows, block_type
from headrace_engine.backends.cpu.weights.numbers import to_bfloat16, to_float16
from headrace_engine.backends.cpu.weights.quantize import quantized, quantized_matrix, scale_type
from headrace_engine.backends.cpu.weights.rows import Order, TensorRows
from headrace_engine.config import ComputeDtype, WeightQuant
from headrace_engine.models.files import BEYOND_FLOAT16, NOT_FINITE
from headrace_engine.native import Dtype, Format, Matrix, MatrixRows

FORMATS = {
    ComputeDtype.FLOAT32: Format.FLOAT32,
    ComputeDtype.BFLOAT16: Format.BFLOAT16,
    ComputeDtype.FLOAT16: Format.FLOAT16,
}
_OWN_FORMATS = {"F32": Format.FLOAT32, "BF16": Format.BFLOAT16, "F16": Format.FLOAT16}
_TABLES = ("embed", "head")
_EXACT = (".router", ".shared_score", ".k_spread")
"""Ends of the names of matrices that are small, and whose products choose experts, weigh them, or only place numbers:
float32 always."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage of all matrices of a model.

    Attributes:
        dtype: format of matrices that are neither quantized here nor preserved in blocks.
        quant: quantization at loading. With INT4, vocabulary tables are INT8, since each of their rows decides a
            token.
        group: number of weights per scale; 0: a whole row.
    """

    dtype: ComputeDtype
    quant: WeightQuant = WeightQuant.NONE
    group: int = 0

    def quantizes(self, name: str) -> Format | None:
        """Return the format that a matrix is quantized to; None: it is not."""
        if self.quant is WeightQuant.NONE or name.endswith(_EXACT):
            return None
        return Format.INT8 if self.quant is WeightQuant.INT8 or name in _TABLES else Format.INT4

    def takes_blocks(self, name: str, tensor: TensorRows) -> bool:
        """Return True if the file's codes are preserved: in float32 those that we made, but no others."""
        if not tensor.preserves_blocks or self.quantizes(name) is not None or name.endswith(_EXACT):
            return False
        return self.dtype is not ComputeDtype.FLOAT32 or tensor.stored.has_own_codes

    def numbers(self, name: str) -> Format:
        """Return the format of a matrix that is neither quantized here nor preserved in blocks."""
        return Format.FLOAT32 if name.endswith(_EXACT) else FORMATS[self.dtype]

    def largest(self, name: str, tensor: TensorRows) -> Matrix:
        """Return the storage of a matrix, or its upper bound if that depends on the values."""
        if self.takes_blocks(name, tensor):
            return _blocks(tensor).matrix(tensor.outputs, tensor.inputs)
        kind = self.quantizes(name)
        if kind is None:
            return Matrix(tensor.outputs, tensor.inputs, self.numbers(name))
        return quantized_matrix(tensor.outputs, tensor.inputs, kind, self.group, Dtype.FLOAT32)


def block_rows(tensor: TensorRows, first: int, last: int) -> MatrixRows:
    """Return the file's codes; padding has scale and offset 0."""
    rows = _blocks(tensor).rows(tensor.packed(first, last))
    padding = tensor.padding(first, last)
    for part in (rows.scales, rows.offsets):
        if padding is not None and part is not None:
            part[padding] = 0
    return rows


def _blocks(tensor: TensorRows) -> BlockType | QuantizedRows:
    kind = block_type(tensor.stored)
    assert kind is not None
    return kind


def float_rows(tensor: TensorRows, kind: Format, first: int, last: int) -> MatrixRows:
    """Return rows in a float format.

    Raises:
        BadModel: values do not fit into float16.
    """
    if _OWN_FORMATS.get(tensor.stored.storage) is kind:
        return MatrixRows(tensor.numbers(first, last))
    values = tensor.floats(first, last)
    if kind is Format.FLOAT32:
        return MatrixRows(values)
    if kind is Format.BFLOAT16:
        return MatrixRows(to_bfloat16(values))
    return MatrixRows(_fitting(tensor, to_float16(values)))


def quantized_rows(tensor: TensorRows, kind: Format, group: int, first: int, last: int) -> MatrixRows:
    """Quantize rows.

    Raises:
        BadModel: a weight is not finite.
    """
    try:
        return quantized(tensor.floats(first, last), kind, group)
    except ValueError as error:
        raise tensor.stored.error(NOT_FINITE) from error


def joined(tensor: TensorRows, kind: Format, group: int, parts: list[MatrixRows]) -> tuple[Matrix, MatrixRows]:
    """Return all rows of a matrix quantized in parts, and its storage, whose scale type depends on all scales."""
    rows = all_rows(parts)
    assert rows.scales is not None
    stored = scale_type(kind, rows.scales, rows.offsets)
    return quantized_matrix(tensor.outputs, tensor.inputs, kind, group, stored), rows


def all_rows(parts: Sequence[MatrixRows]) -> MatrixRows:
    """Concatenate the rows of parts with the same storage."""
    if len(parts) == 1:
        return parts[0]
    scales, offsets = (_stacked([getattr(part, name) for part in parts]) for name in ("scales", "offsets"))
    return MatrixRows(np.concatenate([part.numbers for part in parts]), scales, offsets)


def chosen_rows(rows: MatrixRows, order: Order) -> MatrixRows:
    """Return rows of codes in an order; −1: a row of zeros."""
    return MatrixRows(rows.numbers[order], _chosen(rows.scales, order), _chosen(rows.offsets, order))


def cut_rows(rows: MatrixRows, columns: slice, group: int) -> MatrixRows:
    """Return some columns of rows, with zeros beyond the end.

    Args:
        columns: with codes, whole groups.
        group: columns that share a scale; 0: all.
    """
    scales, offsets = rows.scales, rows.offsets
    if group:
        groups = slice(columns.start // group, columns.stop // group)
        scales, offsets = (None if part is None else _cut(part, groups) for part in (scales, offsets))
    return MatrixRows(_cut(rows.numbers, columns), scales, offsets)


def _cut(part: NDArray[Any], columns: slice) -> NDArray[Any]:
    found = part[:, columns]
    return np.pad(found, ((0, 0), (0, columns.stop - columns.start - found.shape[1])))


def _chosen(part: NDArray[np.float32] | None, order: Order) -> NDArray[np.float32] | None:
    if part is None:
        return None
    found = part[order]
    found[order < 0] = 0
    return found


def _stacked(parts: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _fitting(tensor: TensorRows, values: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(values).all():
        raise tensor.stored.error(BEYOND_FLOAT16)
    return values
