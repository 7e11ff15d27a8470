"""Logit changes of a row in numpy, bit-identical to csrc and the torch backend."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import SequenceStep

Row = NDArray[np.float32]

_MOST = float(np.finfo(np.float32).max)


def changed_row(own: Row, step: SequenceStep) -> Row:
    """Return a changed copy of the logits; ids that may not be sampled are at -inf.

    Args:
        own: the model's logits, finite.
    """
    row = own.copy()
    if step.changes is not None:
        _change(row, step.changes)
    if step.masked_ids:
        row[_inside(step.masked_ids, row)] = -math.inf
    return row


def allowed_bits(row: Row) -> array[int]:
    """Return the mask of the ids that may be sampled, as in LogitChanges.allowed."""
    bits = np.packbits(row > -math.inf, bitorder="little")
    return array("I", np.pad(bits, (0, -len(bits) % 4)).tobytes())


def _change(row: Row, changes: LogitChanges) -> None:
    if changes.allowed is not None:
        row[~_allowed(changes.allowed, len(row))] = -math.inf
    penalized, penalties = _pairs(changes.penalized, changes.penalties, row)
    before = row[penalized].astype(np.float64)
    repeated = np.where(before < 0, before * changes.repetition, before / changes.repetition)
    row[penalized] = _unless_cut(before, _finite(repeated).astype(np.float64) - penalties)
    biased, biases = _pairs(changes.biased, changes.biases, row)
    before = row[biased].astype(np.float64)
    row[biased] = _unless_cut(before, before + biases)


def _pairs(ids: array[int], amounts: array[float], row: Row) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the ids that lie within the row, and their amounts."""
    positions, values = np.array(ids, dtype=np.int32), np.array(amounts, dtype=np.float64)
    inside = (positions >= 0) & (positions < len(row))
    return positions[inside], values[inside]


def _unless_cut(before: NDArray[np.float64], after: NDArray[np.float64]) -> Row:
    """Return `after`, with ids that were cut before left at -inf."""
    return np.where(before > -math.inf, _finite(after), np.float32(-math.inf))


def _finite(values: NDArray[np.float64]) -> Row:
    return values.clip(-_MOST, _MOST).astype(np.float32)


def _allowed(words: array[int], size: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), bitorder="little")[:size]
    return np.pad(bits, (0, size - len(bits))).astype(np.bool_)


def _inside(ids: Sequence[int], row: Row) -> NDArray[np.int64]:
    positions = np.array(ids, dtype=np.int64)
    return positions[(positions >= 0) & (positions < len(row))]
