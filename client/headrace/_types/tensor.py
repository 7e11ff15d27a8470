"""Tensors, without a numeric library."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

_TYPES = {  # struct code, numpy type string
    "FLOAT32": ("f", "<f4"),
    "FLOAT16": ("e", "<f2"),
    "BFLOAT16": ("H", ""),
    "UINT8": ("B", "|u1"),
    "INT32": ("i", "<i4"),
    "INT64": ("q", "<i8"),
}


@dataclass(frozen=True)
class Tensor:
    """An array as raw bytes. `numpy.asarray(tensor)` makes no copy; it does not support bfloat16.

    Attributes:
        dtype: "FLOAT32", "BFLOAT16", "FLOAT16", "UINT8", "INT32" or "INT64".
        shape: size of each dimension.
        data: the elements in row-major order, little-endian.

    Raises:
        ValueError: the number of bytes does not match type and shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in _TYPES:
            raise ValueError(f"unknown tensor type {self.dtype}")
        size = struct.calcsize(f"<{_TYPES[self.dtype][0]}") * math.prod(self.shape)
        if size != len(self.data):
            raise ValueError(f"a {self.dtype} tensor of shape {self.shape} has {size} bytes, not {len(self.data)}")

    def tolist(self) -> list[Any]:
        """Return all elements as one flat list, in row-major order."""
        code = _TYPES[self.dtype][0]
        numbers = struct.unpack(f"<{math.prod(self.shape)}{code}", self.data)
        if self.dtype != "BFLOAT16":
            return list(numbers)
        # A bfloat16 is the upper half of a float32.
        return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}I", *(n << 16 for n in numbers))))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The array interface of numpy.

        Raises:
            AttributeError: the type is bfloat16, which numpy lacks; use `tolist()`.
        """
        kind = _TYPES[self.dtype][1]
        if not kind:
            raise AttributeError("bfloat16 has no array interface; use tolist()")
        return {"version": 3, "shape": self.shape, "typestr": kind, "data": self.data}

    def rows(self) -> list[Tensor]:
        """Return the tensors along the first dimension.

        Raises:
            ValueError: the tensor is a scalar.
        """
        if not self.shape:
            raise ValueError("a scalar tensor has no rows")
        count, rest = self.shape[0], self.shape[1:]
        size = len(self.data) // count if count else 0
        return [Tensor(self.dtype, rest, self.data[i * size : (i + 1) * size]) for i in range(count)]
