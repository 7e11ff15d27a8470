"""Block tables on a device, where they stay from step to step, so that steps send only what changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.native.abi import CopyBlocks

UNIT = 4
"""Entries of a table that are sent together: 16 bytes."""

_UNIT_BYTES = 16

Array = NDArray[Any]


@dataclass(slots=True)
class _Held:
    """A table on the device: the caller's object, its row, and how many entries are there."""

    blocks: Sequence[int]
    row: int
    sent: int = 0


class BlockTables:
    """The tables of the last sequences computed. One that is not there takes the place of the longest unused.

    A table is known by its object, `SequenceStep.blocks`: the same object only grows.

    Args:
        device: the device.
        rows: number of tables, at least those of a step.
        blocks: maximum entries of a table.

    Attributes:
        host: int32 [rows, width]; what `place` returned is to be sent.
        here: the same on the device, where entries behind those of a sequence may be those of an earlier one.
    """

    def __init__(self, device: Device, rows: int, blocks: int) -> None:
        width = -(-blocks // UNIT) * UNIT
        self.host: Array = np.zeros((rows, width), np.int32)
        self.here = torch.zeros(rows, width, dtype=torch.int32, device=device.torch)
        self._device = device
        self._units = self.host.reshape(-1, UNIT)
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._free = list(range(rows))

    @property
    def most_units(self) -> int:
        """Units of all tables."""
        return len(self._units)

    def place(self, tables: Iterable[tuple[Sequence[int], int]]) -> tuple[list[int], list[int]]:
        """Find the rows of the tables of a step, or assign some.

        Args:
            tables: each with the number of its entries that the step needs.

        Returns:
            The row of each table, and the units that are not on the device yet.
        """
        tables = list(tables)
        # First, so that no table of this step loses its row to another one of it.
        for blocks, _ in tables:
            if id(blocks) in self._held:
                self._held.move_to_end(id(blocks))
        units: list[int] = []
        rows = []
        for blocks, used in tables:
            held = self._held.get(id(blocks)) or self._hold(blocks)
            rows.append(held.row)
            if used > held.sent:
                self.host[held.row, held.sent : used] = blocks[held.sent : used]
                first = held.row * self.host.shape[1]
                units += range((first + held.sent) // UNIT, -(-(first + used) // UNIT))
                held.sent = used
        return rows, units

    def units(self, numbers: Sequence[int]) -> Array:
        """Return units by their numbers, int32 [units, UNIT]."""
        return self._units[numbers]

    def write(self, units: Tensor, pairs: Tensor) -> None:
        """Enqueue the writing of units.

        Args:
            units: int32 on the device, [units, UNIT].
            pairs: a unit's index in `units`, and its number in the tables, int32 [units, 2].
        """
        args = CopyBlocks(
            source=units.data_ptr(),
            target=self.here.data_ptr(),
            pairs=pairs.data_ptr(),
            bytes=_UNIT_BYTES,
            source_stride=_UNIT_BYTES,
            target_stride=_UNIT_BYTES,
            source_piece_stride=_UNIT_BYTES,
            target_piece_stride=_UNIT_BYTES,
            count=len(pairs),
            pieces=1,
        )
        self._device.launch("copy_blocks", args)

    def _hold(self, blocks: Sequence[int]) -> _Held:
        # A step in flight may still read the row: what overwrites it is enqueued behind that step.
        row = self._free.pop() if self._free else self._held.popitem(last=False)[1].row
        # Holding the list keeps its id from becoming another one's.
        held = self._held[id(blocks)] = _Held(blocks, row)
        return held
