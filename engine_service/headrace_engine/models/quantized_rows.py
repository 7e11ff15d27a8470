"""Rows of weights as integer codes with scales: as files of our own format store them, and as codes of others are read.

A row is its codes, then its scales, then its offsets, if it has some. A weight is scale · code + offset, or
scale · (code − zero) without offsets; two codes of 4 bits share a byte, the first in its lower half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

GROUPS = (0, 16, 32, 64, 128)
"""Numbers of weights per scale; 0: a whole row."""
SCALES_OF_A_SCALE = 256
"""Number of scales in codes that share a scale themselves, where scales are quantized too."""


_NAME = re.compile(rf"INT(8|4)-({'|'.join(map(str, GROUPS))})-F(16|32)(-OFFSETS|-ZERO)?")
_SUFFIXES = {(8, True): "-OFFSETS", (4, False): "-ZERO"}
"""Of the names of types that have offsets or none against the habit of their bits."""


@dataclass(frozen=True, slots=True)
class QuantizedType:
    """One storage type.

    Attributes:
        bits: bits of a code, 8 or 4.
        group: number of weights per scale; 0: a whole row.
        scale_bits: bits of a scale and of an offset, 16 or 32.
        has_offsets: whether groups have offsets; what we quantize has them with 4 bits, and none with 8.
    """

    bits: int
    group: int
    scale_bits: int
    has_offsets: bool

    @property
    def name(self) -> str:
        """Its name as a tensor's storage."""
        return f"INT{self.bits}-{self.group}-F{self.scale_bits}{_SUFFIXES.get((self.bits, self.has_offsets), '')}"

    @property
    def zero(self) -> int:
        """Code of the weight 0; 0 with offsets."""
        return 0 if self.has_offsets else self.centre

    @property
    def centre(self) -> int:
        """The code in the middle: of the weight 0 where codes are symmetric."""
        return 1 << (self.bits - 1)

    def scales(self, inputs: int) -> int:
        """Return the number of scales of a row."""
        return -(-inputs // (self.group or inputs))

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row."""
        parts = 2 if self.has_offsets else 1
        return -(-inputs * self.bits // 8) + self.scales(inputs) * parts * self.scale_bits // 8

    def pack(self, codes: Bytes, scales: Floats, offsets: Floats | None) -> Bytes:
        """Return rows as bytes: codes [rows, inputs], scales and offsets [rows, scales]."""
        return self.joined(codes if self.bits == 8 else _paired(codes), scales, offsets)

    def joined(self, packed: Bytes, scales: Floats, offsets: Floats | None) -> Bytes:
        """Return rows as bytes, as `pack`, of codes that are packed already."""
        import numpy as np

        numbers = [part.astype(f"<f{self.scale_bits // 8}") for part in (scales, offsets) if part is not None]
        parts = [np.ascontiguousarray(part).view(np.uint8).reshape(len(packed), -1) for part in numbers]
        return np.concatenate([packed, *parts], axis=1)

    def unpack(self, rows: Bytes, inputs: int) -> tuple[Bytes, Floats, Floats | None]:
        """Return codes [rows, inputs], scales and offsets [rows, scales] of rows as bytes."""
        import numpy as np

        count, width = self.scales(inputs), self.scale_bits // 8
        numbers = np.ascontiguousarray(rows[:, -(-inputs * self.bits // 8) :]).view(f"<f{width}").astype(np.float32)
        codes = rows[:, :inputs] if self.bits == 8 else unpaired(rows[:, : -(-inputs // 2)], inputs)
        return codes, numbers[:, :count], numbers[:, count:] if self.has_offsets else None

    def floats(self, rows: Bytes, inputs: int) -> Floats:
        """Return the weights of rows as bytes, [rows, inputs]."""
        import numpy as np

        codes, scales, offsets = self.unpack(rows, inputs)
        group = self.group or inputs
        weights: Floats = (codes.astype(np.float32) - np.float32(self.zero)) * np.repeat(scales, group, 1)[:, :inputs]
        return weights if offsets is None else weights + np.repeat(offsets, group, 1)[:, :inputs]


@lru_cache
def quantized_type(storage: str) -> QuantizedType | None:
    """Return the type of a storage name; None: it is another kind of storage."""
    match = _NAME.fullmatch(storage)
    if match is None:
        return None
    bits, suffix = int(match[1]), match[4] or ""
    kind = QuantizedType(bits, int(match[2]), int(match[3]), (bits == 4) is (suffix == ""))
    return kind if kind.name == storage else None


def _paired(codes: Bytes) -> Bytes:
    import numpy as np

    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return even[:, ::2] | even[:, 1::2] << np.uint8(4)


def unpaired(pairs: Bytes, inputs: int) -> Bytes:
    """Return codes [rows, inputs] of rows whose bytes hold two of them, the first in the lower half."""
    import numpy as np

    return np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=2).reshape(len(pairs), -1)[:, :inputs]
