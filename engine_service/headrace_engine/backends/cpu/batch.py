"""Steps as the arrays that a program reads, all allocated once."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from headrace_engine.backends.sampling_structs import ROW_BYTES, SamplingStructs, structs_in
from headrace_engine.core.row_fields import LogitChanges
from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.native import Batch, Shape
from headrace_engine.native import Sequence as SequenceStruct
from headrace_engine.sampling_params import SamplingParams

_INT = "i"
"""Type code of the integers in a CoreBatch."""
_NO_CHANGES = LogitChanges()
_NO_IDS = array("I", [0])
"""Mask that allows no id: an empty array may have a null address, which would allow all."""


class CpuBatch:
    """The batch of one step at a time, in memory that it owns and reuses.

    Args:
        shape: the largest batch.

    Attributes:
        struct: the batch as the program takes it; its pointers never change.
    """

    def __init__(self, shape: Shape) -> None:
        self._block_size = shape.block_size
        table = -(-shape.max_positions // shape.block_size)
        self._ids, ids = _integers(shape.max_tokens)
        # Pages that are never written take no memory.
        self._tables, self._tables_at = _integers(shape.max_sequences * table)
        self._logits_rows, wanted = _integers(shape.max_logits)
        sequences = np.zeros(shape.max_sequences * ctypes.sizeof(SequenceStruct), np.uint8)
        self._sequences = structs_in(sequences, SequenceStruct)
        rows = {name: np.zeros(shape.max_logits * size, np.uint8) for name, size in ROW_BYTES.items()}
        self._structs = SamplingStructs(**rows, vocab=shape.vocab)
        # Bare addresses: this object holds all arrays, and allocates none of them again.
        at = {name: array.ctypes.data for name, array in rows.items()}
        self._changes_at = at.pop("changes")
        self._masked: list[array[int]] = []
        self.struct = Batch(token_ids=ids, sequences=sequences.ctypes.data, wanted=wanted, **at)

    def fill(self, steps: Sequence[SequenceStep]) -> None:
        """Write the rows of the steps in order; the last row of each with `sampling` needs logits."""
        self._masked.clear()
        row = blocks = logits = 0
        for number, step in enumerate(steps):
            length = len(step.token_ids)
            self._ids[row : row + length] = array(_INT, step.token_ids)
            used = -(-(step.start + length) // self._block_size)
            self._tables[blocks : blocks + used] = array(_INT, step.blocks[:used])
            sequence = self._sequences[number]
            sequence.blocks = self._tables_at + blocks * self._tables.itemsize
            sequence.length, sequence.start, sequence.adapter = length, step.start, step.adapter
            row, blocks = row + length, blocks + used
            if step.sampling is not None:
                self._add_logits_row(logits, row - 1, step, step.sampling)
                logits += 1
        self.struct.num_tokens, self.struct.num_sequences, self.struct.num_logits = row, len(steps), logits

    def sampled(self, steps: Sequence[SequenceStep]) -> Iterator[Sampled]:
        """Yield the results of the steps with `sampling`."""
        asking = enumerate(step.sampling for step in steps if step.sampling is not None)
        return self._structs.sampled(asking)

    def _add_logits_row(self, number: int, row: int, step: SequenceStep, sampling: SamplingParams) -> None:
        self._logits_rows[number] = row
        changes = 0
        if step.masked_ids or step.changes is not None:
            changes = self._change(number, step.masked_ids, step.changes or _NO_CHANGES)
        self._structs.pack_sampling(number, step, sampling, changes)

    def _change(self, number: int, masked_ids: Sequence[int], changes: LogitChanges) -> int:
        """Write the logit changes of a row; return the address of their struct.

        The struct points into the sequence's own arrays, which the caller keeps alive during the step, and into
        `_masked`, which lives until the next `fill`.
        """
        ids = array(_INT, masked_ids)
        self._masked.append(ids)
        masked, masked_count = ids.buffer_info()
        allowed, words = (0, 0) if changes.allowed is None else (changes.allowed or _NO_IDS).buffer_info()
        arrays = (changes.penalized, changes.penalties, changes.biased, changes.biases)
        addresses = (*(array.buffer_info()[0] for array in arrays), masked, allowed)
        self._structs.pack_changes(number, changes, masked_count, addresses, words)
        return self._changes_at + number * ROW_BYTES["changes"]


def _integers(count: int) -> tuple[memoryview, int]:
    numbers = np.empty(count, dtype=np.int32)
    return numbers.data.cast("B").cast("i"), numbers.ctypes.data
