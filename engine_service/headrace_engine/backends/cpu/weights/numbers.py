"""Converts numbers in files to and from float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

PLAIN: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""Storage types of plain numbers; bfloat16 as its bits."""

_INFINITY = np.uint32(0x7F800000)


def to_float32(values: NDArray[Any], storage: str) -> Floats:
    """Convert stored numbers to float32."""
    if storage == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > _INFINITY
    return np.where(is_nan, quiet, rounded).astype(np.uint16)


def to_float16(values: Floats) -> NDArray[np.float16]:
    """Return the nearest float16; values out of range become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)
