"""Blocks of GGUF files as codes, scales and offsets: weight = scale · (value − zero) + offset, bit-exact.

Each type has a function that unpacks blocks, uint8 [blocks, bytes], to codes [blocks, values], scales
[blocks, groups] and offsets. Other types are read as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.files import StoredTensor
from headrace_engine.models.quantized_rows import QuantizedType, quantized_type
from headrace_engine.native import Dtype, Format, Matrix, MatrixRows

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Unpacked = tuple[Bytes, Floats, Floats | None]

_NIBBLES = np.array([0, 4], dtype=np.uint8)
_PAIRS = np.array([0, 2, 4, 6], dtype=np.uint8)
_BITS = np.arange(8, dtype=np.uint8)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class BlockType:
    """One storage type.

    Attributes:
        values, nbytes: number of values and bytes of a block.
        unpack: see the module.
    """

    format: Format
    group: int
    scales: Dtype
    values: int
    nbytes: int
    unpack: Callable[[Bytes], Unpacked]
    offsets: bool = False
    zero: int = 0
    codebook: tuple[float, ...] = ()

    def matrix(self, outputs: int, inputs: int) -> Matrix:
        """Return the storage of a matrix of this type."""
        return Matrix(outputs, inputs, self.format, self.group, self.scales, self.offsets, self.zero, self.codebook)

    def rows(self, packed: Bytes) -> MatrixRows:
        """Return the codes of rows of blocks, uint8 [rows, bytes]."""
        count = len(packed)
        codes, scales, offsets = self.unpack(packed.reshape(-1, self.nbytes))
        shaped = [None if part is None else np.ascontiguousarray(part.reshape(count, -1)) for part in (scales, offsets)]
        return MatrixRows(np.ascontiguousarray(codes.reshape(count, -1)), *shaped)

    def floats(self, packed: Bytes) -> Floats:
        """Return the values of rows of blocks, [rows, inputs]."""
        rows = self.rows(packed)
        values: Any = np.array(self.codebook, np.float32)[rows.numbers] if self.codebook else rows.numbers
        grouped: Floats = values.reshape(len(packed), -1, self.group).astype(np.float32) - np.float32(self.zero)
        grouped *= rows.scales[..., None]  # type: ignore[index]
        if rows.offsets is not None:
            grouped += rows.offsets[..., None]
        return grouped.reshape(len(packed), -1)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of integer codes with scales; the same methods as BlockType's."""

    kind: QuantizedType
    inputs: int

    def matrix(self, outputs: int, inputs: int) -> Matrix:
        """Return the storage of a matrix of this type."""
        scales, kind = Dtype.FLOAT16 if self.kind.scale_bits == 16 else Dtype.FLOAT32, self.kind
        codes = Format.INT8 if kind.bits == 8 else Format.INT4
        return Matrix(outputs, inputs, codes, kind.group, scales, offsets=kind.has_offsets, zero=kind.zero)

    def rows(self, packed: Bytes) -> MatrixRows:
        """Return the codes of rows, uint8 [rows, bytes]."""
        codes, scales, offsets = self.kind.unpack(packed, self.inputs)
        return MatrixRows(np.array(codes), np.array(scales), None if offsets is None else np.array(offsets))

    def floats(self, packed: Bytes) -> Floats:
        """Return the values of rows, [rows, inputs]."""
        return self.kind.floats(packed, self.inputs)


def block_type(stored: StoredTensor) -> BlockType | QuantizedRows | None:
    """Return the type of a stored tensor whose codes can be preserved; None: it has none."""
    coded = quantized_type(stored.storage)
    return BLOCK_TYPES.get(stored.storage) if coded is None else QuantizedRows(coded, stored.shape[-1])


def _half(blocks: Bytes, at: int) -> Floats:
    """Return the float16 at a byte offset of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _fields(packed: Bytes, run: int, shifts: NDArray[np.uint8], mask: int) -> Bytes:
    """Return bit fields, [blocks, values]: for each run of bytes, all fields at the first shift, then at the next."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return ((runs >> shifts.reshape(1, 1, -1, 1)) & np.uint8(mask)).reshape(len(packed), -1)


def _high_bits(packed: Bytes) -> Bytes:
    """Return one bit per value, [blocks, values], from bytes whose lowest bit comes first."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def _q4_0(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 2:], 16, _NIBBLES, 15), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 4:], 16, _NIBBLES, 15), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Unpacked:
    return _fields(blocks[:, 6:], 16, _NIBBLES, 15) | _high_bits(blocks[:, 2:6]) << np.uint8(4), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Unpacked:
    codes = _fields(blocks[:, 8:], 16, _NIBBLES, 15) | _high_bits(blocks[:, 4:8]) << np.uint8(4)
    return codes, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Unpacked:
    return blocks[:, 2:] ^ np.uint8(0x80), _half(blocks, 0), None  # From −128 … 127 to 0 … 255.


def _mxfp4(blocks: Bytes) -> Unpacked:
    exponents = blocks[:, :1].astype(np.uint32)
    bits = np.where(exponents < 2, np.uint32(0x200000) << exponents, (exponents - np.uint32(1)) << np.uint32(23))
    return _fields(blocks[:, 1:], 16, _NIBBLES, 15), bits.view(np.float32), None


def _q2_k(blocks: Bytes) -> Unpacked:
    scales = blocks[:, :16]
    steps = _half(blocks, 80) * (scales & np.uint8(15)).astype(np.float32)
    lows = _half(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return _fields(blocks[:, 16:80], 32, _PAIRS, 3), steps, -lows


def _q3_k(blocks: Bytes) -> Unpacked:
    """Return codes 0 to 7: the file's high bit is clear where 4 is subtracted."""
    high = _fields(blocks[:, :32], 32, _BITS, 1)
    codes = _fields(blocks[:, 32:96], 32, _PAIRS, 3) | high << np.uint8(2)
    low_bits = _fields(blocks[:, 96:104], 8, _NIBBLES, 15)
    high_bits = _fields(blocks[:, 104:108], 4, _PAIRS, 3)
    scales = (low_bits | high_bits << np.uint8(4)).astype(np.float32) - np.float32(32)
    return codes, _half(blocks, 108) * scales, None


def _six_bits(packed: Bytes) -> tuple[Floats, Floats]:
    """Return eight scales and eight minima of 6 bits from the 12 bytes of Q4_K and Q5_K."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (rest & 0x0F) | (first >> 2 & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (rest >> 4) | (second >> 2 & 0x30)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(blocks: Bytes) -> Unpacked:
    scales, minima = _six_bits(blocks[:, 4:16])
    return _fields(blocks[:, 16:], 32, _NIBBLES, 15), _half(blocks, 0) * scales, -(_half(blocks, 2) * minima)


def _q5_k(blocks: Bytes) -> Unpacked:
    scales, minima = _six_bits(blocks[:, 4:16])
    codes = _fields(blocks[:, 48:], 32, _NIBBLES, 15) | _fields(blocks[:, 16:48], 32, _BITS, 1) << np.uint8(4)
    return codes, _half(blocks, 0) * scales, -(_half(blocks, 2) * minima)


def _q6_k(blocks: Bytes) -> Unpacked:
    codes = _fields(blocks[:, :128], 64, _NIBBLES, 15) | _fields(blocks[:, 128:192], 32, _PAIRS, 3) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return codes, _half(blocks, 208) * scales, None


def _iq4_xs(blocks: Bytes) -> Unpacked:
    high_bits = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16)
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    high = ((high_bits >> shifts) & np.uint16(3)).astype(np.uint8) << np.uint8(4)
    low = ((blocks[:, 4:8, None] >> _NIBBLES) & np.uint8(15)).reshape(len(blocks), 8)
    scales = (low | high).astype(np.float32) - np.float32(32)
    return _fields(blocks[:, 8:], 16, _NIBBLES, 15), _half(blocks, 0) * scales, None


_INT4, _INT8, _F16, _F32 = Format.INT4, Format.INT8, Dtype.FLOAT16, Dtype.FLOAT32

BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(_INT4, 32, _F16, 32, 18, _q4_0, zero=8),
    "Q4_1": BlockType(_INT4, 32, _F16, 32, 20, _q4_1, offsets=True),
    "Q5_0": BlockType(_INT8, 32, _F16, 32, 22, _q5_0, zero=16),
    "Q5_1": BlockType(_INT8, 32, _F16, 32, 24, _q5_1, offsets=True),
    "Q8_0": BlockType(_INT8, 32, _F16, 32, 34, _q8_0, zero=128),
    "Q2_K": BlockType(_INT4, 16, _F32, 256, 84, _q2_k, offsets=True),
    "Q3_K": BlockType(_INT4, 16, _F32, 256, 110, _q3_k, zero=4),
    "Q4_K": BlockType(_INT4, 32, _F32, 256, 144, _q4_k, offsets=True),
    "Q5_K": BlockType(_INT8, 32, _F32, 256, 176, _q5_k, offsets=True),
    "Q6_K": BlockType(_INT8, 16, _F32, 256, 210, _q6_k, zero=32),
    "IQ4_NL": BlockType(_INT4, 32, _F16, 32, 18, _q4_0, codebook=_IQ4),
    "IQ4_XS": BlockType(_INT4, 32, _F32, 256, 136, _iq4_xs, codebook=_IQ4),
    "MXFP4": BlockType(_INT4, 32, _F32, 32, 17, _mxfp4, codebook=_FP4),
}
"""Block types by StoredTensor.storage."""
