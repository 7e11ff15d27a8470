"""Offsets of a step's values in the workspace: each is live from the op that writes it to the last that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace_engine.native import Program, Rows, Value

_FLOATS = 16
"""Alignment of values, in floats."""


@dataclass(frozen=True, eq=False, slots=True)
class Activation:
    """A value of a step, [rows, width], before it has an offset."""

    width: int
    rows: Rows = Rows.TOKENS


Offsets = Mapping[Activation, Value]


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op of a step.

    Attributes:
        reads, writes: its values.
        in_place: pairs of a value written and a value read, which may share an offset.
        record: appends the op to a program.
    """

    reads: tuple[Activation, ...]
    writes: tuple[Activation, ...]
    record: Callable[[Program, Offsets], None]
    in_place: tuple[tuple[Activation, Activation], ...] = ()


@dataclass(slots=True)
class _Extent:
    """The range of floats that a value occupies while it is live."""

    begin: int
    end: int
    last_use: int


def plan_offsets(ops: Sequence[RecordedOp], counts: Mapping[Rows, int]) -> tuple[Offsets, int]:
    """Return the offset of every value that ops write, and the floats that the workspace needs for them.

    Args:
        counts: maximum number of rows of a value.
    """
    last_use = {value: number for number, op in enumerate(ops) for value in (*op.writes, *op.reads)}
    offsets: dict[Activation, Value] = {}
    live: dict[Activation, _Extent] = {}
    total = 0
    for number, op in enumerate(ops):
        for value in op.writes:
            extent = _inherited(value, op, live, number) or _free(_floats(value, counts), live)
            extent.last_use = last_use[value]
            live[value] = extent
            offsets[value] = Value(extent.begin, value.width, value.rows)
            total = max(total, extent.end)
        live = {value: extent for value, extent in live.items() if extent.last_use > number}
    return offsets, total


def _inherited(value: Activation, op: RecordedOp, live: dict[Activation, _Extent], number: int) -> _Extent | None:
    """Take over the extent of a value that this op is the last to read, and may overwrite; None: there is none."""
    for written, read in op.in_place:
        if written is value and live[read].last_use == number:
            return live.pop(read)
    return None


def _free(floats: int, live: Mapping[Activation, _Extent]) -> _Extent:
    """Return the first gap that is large enough."""
    begin = 0
    for extent in sorted(live.values(), key=lambda extent: extent.begin):
        if extent.begin - begin >= floats:
            break
        begin = extent.end
    return _Extent(begin, begin + floats, 0)


def _floats(value: Activation, counts: Mapping[Rows, int]) -> int:
    return -(-value.width * counts[value.rows] // _FLOATS) * _FLOATS
