"""Steps as the arrays that a program reads. All of them are allocated once."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from headrace_engine.backends.draw_structs import (
    CHANGES,
    SAMPLED,
    SAMPLING,
    TOP,
    pack_changes,
    pack_sampling,
    unpack_drawn,
)
from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
from headrace_engine.generation_config import SamplingParams
from headrace_engine.native import Batch, Shape
from headrace_engine.native import Sequence as SequenceStruct

_SEQUENCE = struct.Struct("@Qii")
assert _SEQUENCE.size == ctypes.sizeof(SequenceStruct)
_INT = "i"
"""A CoreBatch's integers, as arrays call them."""
_NO_CHANGES = LogitChanges()
_NO_IDS = array("I", [0])
"""What allows no id; an empty array may lie nowhere, which would allow all."""


class CpuBatch:
    """One step at a time.

    Args:
        shape: the largest batch.

    Attributes:
        struct: what the program takes; its pointers stay.
    """

    def __init__(self, shape: Shape) -> None:
        self._block_size = shape.block_size
        self._vocab = shape.vocab
        table = -(-shape.max_positions // shape.block_size)
        self._ids, ids = _integers(shape.max_tokens)
        # Pages that no step writes take no memory.
        self._tables, self._tables_at = _integers(shape.max_sequences * table)
        self._wanted, wanted = _integers(shape.max_logits)
        self._sequences, sequences = _bytes(shape.max_sequences * _SEQUENCE.size)
        self._sampling, sampling = _bytes(shape.max_logits * SAMPLING.size)
        self._sampled, sampled = _bytes(shape.max_logits * SAMPLED.size)
        self._changes, self._changes_at = _bytes(shape.max_logits * CHANGES.size)
        self._top_ids, top_ids = _integers(shape.max_logits * TOP)
        self._top_logprobs, top_logprobs = _doubles(shape.max_logits * TOP)
        self._masked: list[array[int]] = []
        self.struct = Batch(ids, sequences, wanted, sampling, sampled, top_ids, top_logprobs)

    def fill(self, steps: Sequence[SequenceStep]) -> None:
        """Take the rows of the steps one after the other; the last row of each that wants a token is wanted."""
        self._masked.clear()
        row = blocks = logits = 0
        for number, step in enumerate(steps):
            length = len(step.token_ids)
            self._ids[row : row + length] = array(_INT, step.token_ids)
            used = -(-(step.start + length) // self._block_size)
            self._tables[blocks : blocks + used] = array(_INT, step.blocks[:used])
            place = self._tables_at + blocks * self._tables.itemsize
            _SEQUENCE.pack_into(self._sequences, number * _SEQUENCE.size, place, length, step.start)
            row, blocks = row + length, blocks + used
            if step.sampling is not None:
                self._want(logits, row - 1, step, step.sampling)
                logits += 1
        self.struct.num_tokens, self.struct.num_sequences, self.struct.num_logits = row, len(steps), logits

    def drawn(self, steps: Sequence[SequenceStep]) -> Iterator[Sampled]:
        """What the program drew for each step that wanted it."""
        asking = enumerate(step.sampling for step in steps if step.sampling is not None)
        return unpack_drawn(self._sampled, (self._top_ids, self._top_logprobs), asking, self._vocab)

    def _want(self, number: int, row: int, step: SequenceStep, sampling: SamplingParams) -> None:
        self._wanted[number] = row
        changes = 0
        if step.masked_ids or step.changes is not None:
            changes = self._change(number, step.masked_ids, step.changes or _NO_CHANGES)
        pack_sampling(self._sampling, number, step, sampling, changes, self._vocab)

    def _change(self, number: int, masked_ids: Sequence[int], changes: LogitChanges) -> int:
        """Where a row finds what is done to its logits."""
        ids = array(_INT, masked_ids)
        self._masked.append(ids)
        masked, masked_count = ids.buffer_info()
        allowed, words = (0, 0) if changes.allowed is None else (changes.allowed or _NO_IDS).buffer_info()
        arrays = (changes.penalized, changes.penalties, changes.biased, changes.biases)
        places = (*(array.buffer_info()[0] for array in arrays), masked, allowed)
        pack_changes(self._changes, number, changes, masked_count, places, words)
        return self._changes_at + number * CHANGES.size


def _integers(count: int) -> tuple[memoryview, int]:
    numbers = np.empty(count, dtype=np.int32)
    return numbers.data.cast("B").cast("i"), numbers.ctypes.data


def _doubles(count: int) -> tuple[memoryview[float], int]:
    numbers = np.empty(count, dtype=np.float64)
    return numbers.data.cast("B").cast("d"), numbers.ctypes.data


def _bytes(count: int) -> tuple[memoryview, int]:
    room = np.zeros(count, dtype=np.uint8)
    return room.data, room.ctypes.data
