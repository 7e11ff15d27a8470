"""Rows of weights as codes of a table of numbers, with scales: a weight is scale · table[code].

Such rows are written out as numbers, rounded to the number format of the model, and not multiplied as they are, except
for those of MXFP4 on the cpu backend. A row is its codes, then its scales in float32; two codes of 4 bits share a byte,
the first in its lower half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace_engine.models.quantized_rows import QuantizedType, quantized_type, unpaired

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

E4M3 = "E4M3"
"""Name of the table of numbers of eight bits with four of exponent."""

_BITS = {E4M3: 8, "NF4": 4}
"""Bits of a code by table."""
_NAME = re.compile(rf"({'|'.join(_BITS)})-(\d{{1,10}})")

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, as the QLoRA paper has them."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of four bits with two of exponent."""


@dataclass(frozen=True, slots=True)
class TableType:
    """One storage type.

    Attributes:
        table: name of the table.
        group: number of weights per scale; 0: a whole row.
    """

    table: str
    group: int
    has_offsets: bool = False
    zero: int = 0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return _BITS[self.table]

    @property
    def name(self) -> str:
        """Its name as a tensor's storage."""
        return f"{self.table}-{self.group}"

    def scales(self, inputs: int) -> int:
        """Return the number of scales of a row."""
        return -(-inputs // (self.group or inputs))

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row."""
        return -(-inputs * self.bits // 8) + 4 * self.scales(inputs)

    def joined(self, packed: Bytes, scales: Floats, offsets: Floats | None) -> Bytes:
        """Return rows as bytes: packed codes [rows, bytes] and scales [rows, scales]; there are no offsets."""
        import numpy as np

        assert offsets is None
        return np.concatenate([packed, np.ascontiguousarray(scales, "<f4").view(np.uint8)], axis=1)

    def floats(self, rows: Bytes, inputs: int) -> Floats:
        """Return the weights of rows as bytes, [rows, inputs]."""
        import numpy as np

        width = -(-inputs * self.bits // 8)
        scales = np.ascontiguousarray(rows[:, width:]).view("<f4")
        codes = rows[:, :width] if self.bits == 8 else unpaired(rows[:, :width], inputs)
        weights: Floats = (_e4m3() if self.table == E4M3 else np.array(NF4, np.float32))[codes]
        weights *= np.repeat(scales, self.group or inputs, 1)[:, :inputs]
        return weights


@dataclass(frozen=True, slots=True)
class Mxfp4Type:
    """Blocks of 32 numbers (e2m1) with a power of two as their scale (e8m0), in the order that GGUF files have.

    A block is its scale, then codes of four bits: each byte has one of the first half of the block and one of the last.
    """

    name = "MXFP4"
    block = 32
    """Numbers of a block."""

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row."""
        return inputs // self.block * (1 + self.block // 2)

    def floats(self, rows: Bytes, inputs: int) -> Floats:
        """Return the weights of rows as bytes, [rows, inputs]."""
        import numpy as np

        blocks = rows.reshape(-1, 1 + self.block // 2)
        codes = np.concatenate([blocks[:, 1:] & np.uint8(15), blocks[:, 1:] >> np.uint8(4)], axis=1)
        scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127)
        with np.errstate(over="ignore"):
            weights: Floats = np.array(_E2M1, np.float32)[codes] * scales
        return weights.reshape(len(rows), inputs)


MXFP4 = Mxfp4Type()


@lru_cache
def table_type(storage: str) -> TableType | None:
    """Return the type of a storage name; None: it is another kind of storage."""
    match = _NAME.fullmatch(storage)
    return None if match is None else TableType(match[1], int(match[2]))


def row_type(storage: str) -> QuantizedType | TableType | Mxfp4Type | None:
    """Return the type of rows of codes of a storage name; None: it is another kind of storage."""
    if storage == MXFP4.name:
        return MXFP4
    return quantized_type(storage) or table_type(storage)


@lru_cache
def _e4m3() -> Floats:
    """Return the numbers of eight bits with four of exponent, bias 7, and no infinities."""
    import numpy as np

    codes = np.arange(256, dtype=np.uint32)
    exponents, fractions = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float64) / 8
    sizes = np.where(exponents == 0, np.ldexp(fractions, -6), np.ldexp(1 + fractions, exponents - 7))
    sizes[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)
