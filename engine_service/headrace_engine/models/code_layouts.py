"""Layouts in which other programs hold quantized matrices.

Each is a class that returns packed codes, scales and zero points of some rows; a weight is scale · (code − zero point),
or scale · the number that a table has for the code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.quantized_rows import SCALES_OF_A_SCALE, unpaired

Bytes = NDArray[np.uint8]
Parts = Sequence[NDArray[Any]]

_WORD = 32
"""Bits of a word of packed codes."""

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight outputs, the index of its code in a word."""


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
        words, own = _words(rows, bits)
        return _unpacked(parts[2][:, words], bits)[:, own].T.astype(np.int32) + np.int32(self._added)


class AwqLayout(GptqLayout):
    """Words [inputs, outputs / 8] whose codes are in another order; scales and zero points likewise."""

    def __init__(self) -> None:
        super().__init__(0)

    def codes(self, parts: Parts, first: int, last: int, bits: int) -> Bytes:
        """See Layout."""
        codes = _in_order(parts[0][:, first // 8 : -(-last // 8)])[:, first % 8 :][:, : last - first]
        by_output = np.ascontiguousarray(codes.T)
        return by_output[:, ::2] | by_output[:, 1::2] << np.uint8(4)

    def zeros(self, parts: Parts, rows: NDArray[np.int64], bits: int) -> NDArray[np.int32] | None:
        """See Layout."""
        words, own = _words(rows, bits)
        return _in_order(parts[2][:, words])[:, own].T.astype(np.int32)


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
        words, own = _words(rows, bits)
        return _unpacked(parts[2][words].T, bits).T[own].astype(np.int32)


class E4m3Layout(RowLayout):
    """Floating-point numbers of eight bits in place of codes."""

    def check(self, codes: Bytes) -> str:
        """See Layout."""
        return "holds codes that are no numbers" if (codes & np.uint8(127) == 127).any() else ""


class Nf4Layout(RowLayout):
    """Bytes with two codes, the first in the upper half, of rows one after another; scales, which may be codes too.

    Scales in codes have a table, and a scale for each 256 of them: parts are then codes, scales, table, their scales.
    """

    def codes(self, parts: Parts, first: int, last: int, bits: int) -> Bytes:
        """See Layout."""
        pairs = parts[0][first:last]
        return pairs << np.uint8(4) | pairs >> np.uint8(4)

    def scales(self, parts: Parts, rows: NDArray[np.int64]) -> NDArray[Any]:
        """See Layout."""
        if len(parts) == 2:
            return parts[1][rows]
        groups = parts[1].shape[1]
        numbers = rows[:, None] * groups + np.arange(groups)
        nested: NDArray[Any] = parts[2][parts[1][rows]] * parts[3][numbers // SCALES_OF_A_SCALE]
        return nested

    def zeros(self, parts: Parts, rows: NDArray[np.int64], bits: int) -> NDArray[np.int32] | None:
        """See Layout."""
        return None


class ScbLayout(RowLayout):
    """Codes of eight bits with a sign, and for each row the weight of 127."""

    def scales(self, parts: Parts, rows: NDArray[np.int64]) -> NDArray[Any]:
        """See Layout."""
        return super().scales(parts, rows) / np.float32(127)


LAYOUTS: Mapping[str, Layout] = {
    "GPTQ": GptqLayout(1),
    "GPTQ_V2": GptqLayout(0),
    "AWQ": AwqLayout(),
    "PACKED": RowLayout(),
    "INT8": RowLayout(flipped=0x80),
    "E4M3": E4m3Layout(),
    "NF4": Nf4Layout(),
    "SCB": ScbLayout(flipped=0x80),
}
"""Layouts by Assembly.layout."""


def _by_rows(values: NDArray[Any]) -> NDArray[Any]:
    """Return scales or zero points as [rows, groups], whatever their shape says of single ones."""
    return values.reshape(-1, values.shape[1] if values.ndim == 2 else 1)


def _words(rows: NDArray[np.int64], bits: int) -> tuple[slice, NDArray[np.int64]]:
    """Return which words along the outputs hold codes of rows, which ascend, and the places of these codes in them."""
    codes = _WORD // bits
    first = rows[0] // codes
    return slice(first, rows[-1] // codes + 1), rows - first * codes


def _unpacked(words: NDArray[np.uint32], bits: int) -> Bytes:
    """Return the codes in words [rows, words], lowest bits first, as uint8 [rows, codes]."""
    found = np.ascontiguousarray(words).view(np.uint8)
    return found if bits == 8 else unpaired(found, 2 * found.shape[1])


def _in_order(words: NDArray[np.uint32]) -> Bytes:
    codes = _unpacked(words, 4).reshape(len(words), -1, 8)
    return codes[:, :, list(_AWQ_ORDER)].reshape(len(words), -1)
