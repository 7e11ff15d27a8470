"""Quantizes weights: to 8 bits symmetrically, or to 4 bits from the minimum to the maximum of a group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import Dtype, Format, Matrix, MatrixRows

Floats = NDArray[np.float32]

_MOST = {Format.INT8: 127, Format.INT4: 15}
_ZERO = 128
"""Code of 0 in INT8."""
_TOLERATED = np.float32(0.1)


def quantized(values: Floats, kind: Format, group: int) -> MatrixRows:
    """Quantize rows of weights.

    Args:
        values: [rows, inputs].
        kind: INT8 or INT4.
        group: number of inputs per scale; 0: all.

    Raises:
        ValueError: a weight is not finite.
    """
    rows, inputs = values.shape
    width = group or inputs
    filled = _filled(values, width).reshape(rows, -1, width)
    low, high = filled.min(2), filled.max(2)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("a weight is not finite")
    if kind is Format.INT8:
        scales, offsets = np.maximum(high, -low) / np.float32(_MOST[kind]), None
        codes = _codes(filled, scales, np.float32(0)) + np.float32(_ZERO)
    else:
        scales, offsets = (high - low) / np.float32(_MOST[kind]), low
        codes = _codes(filled, scales, low[..., None])
    packed = np.ascontiguousarray(codes.astype(np.uint8).reshape(rows, -1)[:, :inputs])
    return MatrixRows(packed, scales, offsets)


def quantized_matrix(outputs: int, inputs: int, kind: Format, group: int, scales: Dtype) -> Matrix:
    """Return the storage of a matrix that was quantized so."""
    if kind is Format.INT8:
        return Matrix(outputs, inputs, kind, group, scales, zero=_ZERO)
    return Matrix(outputs, inputs, kind, group, scales, offsets=True)


def scale_type(kind: Format, scales: Floats, offsets: Floats | None) -> Dtype:
    """Return float16 if that moves no weight by more than a tenth of a step, else float32."""
    moved = _MOST[kind] * _rounding(scales)
    if offsets is not None:
        moved += _rounding(offsets)
    return Dtype.FLOAT16 if (moved <= _TOLERATED * scales).all() else Dtype.FLOAT32


def _rounding(values: Floats) -> Floats:
    """Return the error of each value in float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved: Floats = np.abs(values.astype(np.float16).astype(np.float32) - values)
    return moved


def _filled(values: Floats, width: int) -> Floats:
    """Pad the last group with its own last weight, which changes neither minimum nor maximum."""
    missing = -values.shape[1] % width
    return np.pad(values, ((0, 0), (0, missing)), mode="edge") if missing else values


def _codes(values: Floats, scales: Floats, low: Floats | np.float32) -> Floats:
    """Return the nearest integer number of scales above low."""
    safe = np.where(scales > 0, scales, np.float32(1))
    return np.rint((values - low) / safe[..., None])
