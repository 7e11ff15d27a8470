"""Programs to time: random weights, keys and values, in more copies than fit into any cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from headrace_engine.native import (
    Batch,
    Cpu,
    Dtype,
    Format,
    Kv,
    Matrix,
    MatrixRows,
    Memory,
    PackedMatrix,
    Program,
    Rows,
    Sampled,
    Sampling,
    Sequence,
    Shape,
    Value,
)

ROTATED_BYTES = 64 << 20
"""Bytes read before anything is read again."""

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {"format": Format.BFLOAT16},
    "int8": {"format": Format.INT8, "scales": Dtype.FLOAT16, "zero": 128},
    "int8 g32": {"format": Format.INT8, "group": 32, "scales": Dtype.FLOAT16, "offsets": True},
    "int4 g32": {"format": Format.INT4, "group": 32, "scales": Dtype.FLOAT16, "offsets": True},
    "iq4 g32": {"format": Format.INT4, "group": 32, "scales": Dtype.FLOAT16, "codebook": _IQ4},
}
BLOCK_SIZE = 16
_PACKED_ROWS = 1024


def copies_of(nbytes: int) -> int:
    """Return the number of copies of a size that make up ROTATED_BYTES."""
    return -(-ROTATED_BYTES // nbytes)


def random_rows(rng: np.random.Generator, matrix: Matrix, rows: int) -> MatrixRows:
    """Return random numbers or codes, small enough that sums stay small."""
    if not matrix.is_integer:
        numbers = rng.standard_normal((rows, matrix.inputs), np.float32) * np.float32(matrix.inputs**-0.5)
        return MatrixRows((numbers.view(np.uint32) >> 16).astype(np.uint16))
    most = 256 if matrix.format is Format.INT8 else 16
    codes = rng.integers(0, most, (rows, matrix.inputs), np.uint8)
    scales = rng.random((rows, matrix.groups), np.float32) / np.float32(most * matrix.inputs**0.5)
    offsets = -scales * np.float32(most / 2) if matrix.offsets else None
    return MatrixRows(codes, scales, offsets)


def random_copies(cpu: Cpu, matrix: Matrix, count: int) -> list[PackedMatrix]:
    """Return equal matrices, each in memory of its own."""
    rng = np.random.default_rng(0)
    nbytes = matrix.packed_bytes(cpu.native)
    apart = -(-nbytes // 4096) * 4096
    memory = Memory(cpu.native, apart * count)
    copies = [PackedMatrix(cpu.native, matrix, memory, apart * number) for number in range(count)]
    rows = random_rows(rng, matrix, min(_PACKED_ROWS, matrix.outputs))
    for first in range(0, matrix.outputs, _PACKED_ROWS):
        left = min(_PACKED_ROWS, matrix.outputs - first)
        part = (None if array is None else array[:left] for array in (rows.numbers, rows.scales, rows.offsets))
        copies[0].pack(cpu, MatrixRows(*part), first)  # type: ignore[arg-type]
    for number in range(1, count):
        memory.view(apart * number, nbytes)[:] = memory.view(0, nbytes)
    return copies


@dataclass
class Timed:
    """A program and its batch. Owns the arrays that the batch points to.

    Args:
        cpu: library that runs it.
        shape: the Shape's fields other than workspace, counts and block size.
        sequences: (start, length) of each.
        widths: widths of the values, by name; those whose names begin with "logits" have one row per sequence.
        record: records the ops.
        ops: number of timed ops in a run.
        sampling: sampling parameters of every sequence.
    """

    cpu: Cpu
    shape: dict[str, int]
    sequences: list[tuple[int, int]]
    widths: dict[str, int]
    record: Callable[[Program, dict[str, Value]], None]
    ops: int = 1
    sampling: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = sum(length for _, length in self.sequences)
        count = len(self.sequences)
        end, self.values = 0, dict[str, Value]()
        for name, width in self.widths.items():
            rows = Rows.LOGITS if name.startswith("logits") else Rows.TOKENS
            self.values[name] = Value(end, width, rows)
            end += -(-(count if rows is Rows.LOGITS else self.tokens) * width // 16) * 16
        longest = max(start + length for start, length in self.sequences)
        blocks = -(-longest // BLOCK_SIZE)
        shape = {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 64, "vocab": 1, "kv": Kv.BFLOAT16, **self.shape}
        counts = {"max_tokens": self.tokens, "max_sequences": count, "max_logits": count}
        self.program = Program(
            self.cpu,
            Shape(
                workspace=end,
                max_positions=blocks * BLOCK_SIZE,
                block_size=BLOCK_SIZE,
                **counts,
                **shape,
            ),
        )
        self.record(self.program, self.values)
        self._bind(count * blocks)
        self._fill_batch(blocks)

    def run(self) -> None:
        """Run one step."""
        self.program.run(self._batch)

    def _bind(self, blocks: int) -> None:
        pool = Memory(self.cpu.native, self.program.block_bytes * blocks)
        numbers = pool.view(0, pool.nbytes).view(np.uint16)
        rng = np.random.default_rng(1)
        if self.program.shape.kv in (Kv.INT8, Kv.UINT4):  # the bytes of floats are good codes, steps and lows alike
            part = (rng.random(1 << 20, np.float32) / np.float32(256)).view(np.uint16)
        else:
            part = (rng.standard_normal(1 << 20, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for begin in range(0, len(numbers), len(part)):
            numbers[begin : begin + len(part)] = part[: len(numbers) - begin]
        self.program.bind(pool, blocks)
        for name, value in self.values.items():
            rows = len(self.sequences) if name.startswith("logits") else self.tokens
            self.program.value(value, rows)[:] = rng.standard_normal((rows, value.width), np.float32)

    def _fill_batch(self, blocks: int) -> None:
        count = len(self.sequences)
        rng = np.random.default_rng(2)
        tables = rng.permutation(count * blocks).astype(np.int32).reshape(count, blocks)
        ids = rng.integers(0, self.program.shape.vocab, self.tokens).astype(np.int32)
        ends = np.cumsum([length for _, length in self.sequences]).astype(np.int32) - 1
        sequences, sampling = (Sequence * count)(), (Sampling * count)()
        for number, (start, length) in enumerate(self.sequences):
            sequences[number] = Sequence(tables[number].ctypes.data, length, start)
            sampling[number] = Sampling(**{"temperature": 0.0, "top_p": 1.0, "seed": number, **self.sampling})
        sampled = (Sampled * count)()
        self._kept = (tables, ids, ends.copy(), sequences, sampling, sampled)
        self._batch = Batch(
            token_ids=ids.ctypes.data,
            sequences=ctypes.addressof(sequences),
            wanted=self._kept[2].ctypes.data,
            sampling=ctypes.addressof(sampling),
            sampled=ctypes.addressof(sampled),
            num_tokens=self.tokens,
            num_sequences=count,
            num_logits=count,
        )
