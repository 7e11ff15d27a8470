"""Rows of quantized matrices, made of the tensors in which checkpoints of other programs hold them, code by code.

Each layout is a class that returns packed codes, scales and zero points of some rows; a weight is
scale · (code − zero point), or scale · the number that a code of E4M3 stands for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.files import Assembly, StoredTensor
from headrace_engine.models.quantized_rows import QuantizedType
from headrace_engine.models.table_rows import TableType, row_type

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Parts = Sequence[NDArray[Any]]
RowType = QuantizedType | TableType

_VALUES_AT_ONCE = 2**22
_ROW_MULTIPLE = 8
"""Rows are assembled in multiples of this: as many lie in one word where codes are packed along the outputs."""

_TYPES = {"I32": "<u4", "I8": "<u1", "F8_E4M3": "<u1", "F16": "<f2", "F32": "<f4", "BF16": "<u2"}
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight outputs, the place of its code in a word."""


class Layout(ABC):
    """How some tensors hold a matrix. Its parts begin with the codes and the scales."""

    @abstractmethod
    def codes(self, parts: Parts, first: int, last: int, bits: int) -> Bytes:
        """Return the packed codes of rows first to last − 1, uint8 [rows, bytes]."""

    @abstractmethod
    def scales(self, parts: Parts, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of the scales, [rows, groups]."""

    @abstractmethod
    def zeros(self, parts: Parts, rows: NDArray[np.int64], bits: int) -> NDArray[np.int32] | None:
        """Return rows of the zero points, [rows, groups]; None: there are none in the tensors."""

    def check(self, codes: Bytes) -> str:
        """Return what is wrong with codes; "" for nothing."""
        return ""


class GptqLayout(Layout):
    """Words [inputs / codes of a word, outputs], scales [groups, outputs], and zero points, packed along outputs.

    Args:
        added: what is to be added to a zero point as stored.
    """

    def __init__(self, added: int) -> None:
        self._added = added

    def codes(self, parts: Parts, first: int, last: int, bits: int) -> Bytes:
        """See Layout; the words of an output, one after another, are its packed codes."""
        return np.ascontiguousarray(parts[0][:, first:last].T).view(np.uint8)

    def scales(self, parts: Parts, rows: NDArray[np.int64]) -> NDArray[Any]:
        """See Layout."""
        return parts[1][:, rows].T

    def zeros(self, parts: Parts, rows: NDArray[np.int64], bits: int) -> NDArray[np.int32] | None:
        """See Layout."""
        return _unpacked(parts[2], bits)[:, rows].T + np.int32(self._added)


class AwqLayout(GptqLayout):
    """Words [inputs, outputs / 8] whose codes are in another order; scales and zero points likewise."""

    def __init__(self) -> None:
        super().__init__(0)

    def codes(self, parts: Parts, first: int, last: int, bits: int) -> Bytes:
        """See Layout."""
        codes = _in_order(parts[0][:, first // 8 : -(-last // 8)])[:, first % 8 :][:, : last - first]
        by_output = np.ascontiguousarray(codes.T).astype(np.uint8)
        return by_output[:, ::2] | by_output[:, 1::2] << np.uint8(4)

    def zeros(self, parts: Parts, rows: NDArray[np.int64], bits: int) -> NDArray[np.int32] | None:
        """See Layout."""
        return _in_order(parts[2])[:, rows].T


class RowLayout(Layout):
    """A matrix [outputs, bytes of codes] with scales [outputs or fewer, groups], which `Assembly.height` rows share.

    Args:
        flipped: the bit that makes codes with a sign codes without one.
    """

    def __init__(self, flipped: int = 0) -> None:
        self._flipped = np.uint8(flipped)

    def codes(self, parts: Parts, first: int, last: int, bits: int) -> Bytes:
        """See Layout."""
        return np.ascontiguousarray(parts[0][first:last]).view(np.uint8) ^ self._flipped

    def scales(self, parts: Parts, rows: NDArray[np.int64]) -> NDArray[Any]:
        """See Layout."""
        return _by_rows(parts[1])[rows]

    def zeros(self, parts: Parts, rows: NDArray[np.int64], bits: int) -> NDArray[np.int32] | None:
        """See Layout; they are packed along the outputs, or eight bits with a sign."""
        if len(parts) < 3:
            return None
        if parts[2].dtype == np.uint8:
            return (_by_rows(parts[2])[rows] ^ self._flipped).astype(np.int32)
        return _unpacked(parts[2].T, bits).T[rows]


class E4m3Layout(RowLayout):
    """Floating-point numbers of eight bits in place of codes."""

    def check(self, codes: Bytes) -> str:
        """See Layout."""
        return "holds codes that are no numbers" if (codes & np.uint8(127) == 127).any() else ""


LAYOUTS: Mapping[str, Layout] = {
    "GPTQ": GptqLayout(1),
    "GPTQ_V2": GptqLayout(0),
    "AWQ": AwqLayout(),
    "PACKED": RowLayout(),
    "INT8": RowLayout(flipped=0x80),
    "E4M3": E4m3Layout(),
}
"""Layouts by Assembly.layout."""


def assemble(stored: StoredTensor, data: Sequence[memoryview]) -> memoryview:
    """Return the rows of a matrix in its storage type.

    Args:
        stored: the matrix.
        data: bytes of the parts of its assembly.

    Raises:
        BadModel: a scale is not finite, or a zero point is out of range or not what the config says.
    """
    assembly, kind = stored.assembly, row_type(stored.storage)
    assert assembly is not None
    assert kind is not None
    parts = [_array(part, bytes_) for part, bytes_ in zip(assembly.parts, data, strict=True)]
    outputs, inputs = stored.shape
    rows = np.empty((outputs, kind.row_bytes(inputs)), dtype=np.uint8)
    step = max(1, _VALUES_AT_ONCE // inputs // _ROW_MULTIPLE) * _ROW_MULTIPLE
    for begin in range(0, outputs, step):
        end = min(begin + step, outputs)
        rows[begin:end] = _rows(assembly, kind, inputs, parts, range(begin + assembly.first, end + assembly.first))
    return rows.reshape(-1).data


def _rows(assembly: Assembly, kind: RowType, inputs: int, parts: Parts, numbers: range) -> Bytes:
    layout, groups = LAYOUTS[assembly.layout], _groups(inputs, assembly.group, kind)
    scaled = np.arange(numbers.start, numbers.stop) // assembly.height
    scales = _scales(assembly.parts[1], layout.scales(parts, scaled))
    zeros = layout.zeros(parts, scaled, kind.bits)
    offsets = None
    if zeros is not None:
        _check_zeros(assembly.parts[2], kind, zeros)
        if kind.has_offsets:
            offsets = (scales * -zeros.astype(np.float32))[:, groups]
    codes = layout.codes(parts, numbers.start, numbers.stop, kind.bits)[:, : -(-inputs * kind.bits // 8)]
    if problem := layout.check(codes):
        raise assembly.parts[0].error(problem)
    return kind.joined(codes, scales[:, groups], offsets)


def _by_rows(values: NDArray[Any]) -> NDArray[Any]:
    """Return scales or zero points as [rows, groups], whatever their shape says of single ones."""
    return values.reshape(-1, values.shape[1] if values.ndim == 2 else 1)


def _groups(inputs: int, stored: int, kind: RowType) -> NDArray[np.int64]:
    """Return for each scale of a row the index of the scale in the file, whose groups may be multiples of ours."""
    return np.arange(kind.scales(inputs)) * kind.group // (stored or inputs)


def _array(part: StoredTensor, data: memoryview) -> NDArray[Any]:
    if part.offset % 4:
        data = memoryview(bytes(data))
    return np.frombuffer(data, dtype=_TYPES[part.storage]).reshape(part.shape)


def _scales(part: StoredTensor, values: NDArray[Any]) -> Floats:
    if part.storage == "BF16":
        scales = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        scales = values.astype(np.float32)
    if not np.isfinite(scales).all():
        raise part.error("holds scales that are not finite")
    return scales


def _check_zeros(part: StoredTensor, kind: RowType, zeros: NDArray[np.int32]) -> None:
    most = (1 << kind.bits) - 1
    if zeros.max(initial=0) > most:
        raise part.error(f"holds the zero point {zeros.max()}; allowed: 0 to {most}")
    if not kind.has_offsets and (zeros != kind.zero).any():
        other = zeros[zeros != kind.zero][0]
        raise part.error(f"holds the zero point {other}, but by the config codes are symmetric around {kind.zero}")


def _unpacked(words: NDArray[np.uint32], bits: int) -> NDArray[np.int32]:
    """Return the codes in words, lowest bits first, along the last axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return codes.reshape(*words.shape[:-1], -1).astype(np.int32)


def _in_order(words: NDArray[np.uint32]) -> NDArray[np.int32]:
    codes = _unpacked(words, 4).reshape(len(words), -1, 8)
    return codes[:, :, list(_AWQ_ORDER)].reshape(len(words), -1)
