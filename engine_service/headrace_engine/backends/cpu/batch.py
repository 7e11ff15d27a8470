"""Steps as the arrays that a program reads. All of them are allocated once."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from headrace_engine.config import SamplingParams
from headrace_engine.core.runner import LogitChanges, Sampled, SequenceStep
from headrace_engine.native import Batch, Limit, Shape
from headrace_engine.native import LogitChanges as ChangesStruct
from headrace_engine.native import Sampled as SampledStruct
from headrace_engine.native import Sampling as SamplingStruct
from headrace_engine.native import Sequence as SequenceStruct

_SEQUENCE = struct.Struct("@Qii")
_SAMPLING = struct.Struct("@dddQQiiiii0Q")
_CHANGES = struct.Struct("@QQQQQQfiiii0Q")
_SAMPLED = struct.Struct("@dii")
_INT = "i"
"""A CoreBatch's integers, as arrays call them."""
_TOP = int(Limit.TOP_LOGPROBS)
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
        sizes = {_SEQUENCE: SequenceStruct, _SAMPLING: SamplingStruct, _SAMPLED: SampledStruct, _CHANGES: ChangesStruct}
        assert all(layout.size == _size(record) for layout, record in sizes.items())
        self._block_size = shape.block_size
        self._vocab = shape.vocab
        table = -(-shape.max_positions // shape.block_size)
        self._ids, ids = _integers(shape.max_tokens)
        # Pages that no step writes take no memory.
        self._tables, self._tables_at = _integers(shape.max_sequences * table)
        self._wanted, wanted = _integers(shape.max_logits)
        self._sequences, sequences = _bytes(shape.max_sequences * _SEQUENCE.size)
        self._sampling, sampling = _bytes(shape.max_logits * _SAMPLING.size)
        self._sampled, sampled = _bytes(shape.max_logits * _SAMPLED.size)
        self._changes, self._changes_at = _bytes(shape.max_logits * _CHANGES.size)
        self._top_ids, top_ids = _integers(shape.max_logits * _TOP)
        self._top_logprobs, top_logprobs = _doubles(shape.max_logits * _TOP)
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
        asking = [step.sampling for step in steps if step.sampling is not None]
        for number, sampling in enumerate(asking):
            logprob, token, finite = _SAMPLED.unpack_from(self._sampled, number * _SAMPLED.size)
            if not finite:
                yield Sampled(None, error="logits are not finite")
            elif token < 0:
                yield Sampled(None)
            else:
                top = self._top(number, sampling.top_logprobs) if sampling.top_logprobs else ()
                yield Sampled(token, logprob if sampling.logprobs else None, top=top)

    def _top(self, number: int, count: int) -> list[tuple[int, float]]:
        span = slice(number * _TOP, number * _TOP + min(count, self._vocab))
        return list(zip(self._top_ids[span], self._top_logprobs[span], strict=True))

    def _want(self, number: int, row: int, step: SequenceStep, sampling: SamplingParams) -> None:
        self._wanted[number] = row
        changes = 0
        if step.masked_ids or step.changes is not None:
            changes = self._change(number, step.masked_ids, step.changes or _NO_CHANGES)
        _SAMPLING.pack_into(
            self._sampling,
            number * _SAMPLING.size,
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.seed,
            changes,
            min(sampling.top_k, self._vocab),
            step.position,
            step.index,
            sampling.logprobs,
            sampling.top_logprobs,
        )

    def _change(self, number: int, masked_ids: Sequence[int], changes: LogitChanges) -> int:
        """Where a row finds what is done to its logits."""
        ids = array(_INT, masked_ids)
        self._masked.append(ids)
        masked, masked_count = ids.buffer_info()
        allowed, words = (0, 0) if changes.allowed is None else (changes.allowed or _NO_IDS).buffer_info()
        _CHANGES.pack_into(
            self._changes,
            number * _CHANGES.size,
            changes.penalized.buffer_info()[0],
            changes.penalties.buffer_info()[0],
            changes.biased.buffer_info()[0],
            changes.biases.buffer_info()[0],
            masked,
            allowed,
            changes.repetition,
            len(changes.penalized),
            len(changes.biased),
            masked_count,
            words,
        )
        return self._changes_at + number * _CHANGES.size


def _integers(count: int) -> tuple[memoryview, int]:
    numbers = np.empty(count, dtype=np.int32)
    return numbers.data.cast("B").cast("i"), numbers.ctypes.data


def _doubles(count: int) -> tuple[memoryview[float], int]:
    numbers = np.empty(count, dtype=np.float64)
    return numbers.data.cast("B").cast("d"), numbers.ctypes.data


def _bytes(count: int) -> tuple[memoryview, int]:
    room = np.zeros(count, dtype=np.uint8)
    return room.data, room.ctypes.data


def _size(record: type) -> int:
    return ctypes.sizeof(record)
