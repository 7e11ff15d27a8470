"""Small programs whose values are given by the test: arrays go in through embedding tables, results come out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
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
    Shape,
    Value,
)
from headrace_engine.native import Sequence as SequenceRows
from numpy.typing import NDArray

STRIDE = 1 << 21
"""Shards begin at multiples of this, so that they share no page."""

Floats = NDArray[np.float32]
Values = Mapping[str, Value]
SHAPE = {
    "max_positions": 64,
    "layers": 1,
    "heads": 1,
    "kv_heads": 1,
    "head_dim": 16,
    "block_size": 16,
    "kv": Kv.FLOAT32,
}
"""Of programs that have nothing to do with keys and values."""


def packed(cpu: Cpu, matrix: Matrix, numbers: NDArray[Any], scales: Any = None, offsets: Any = None) -> PackedMatrix:
    """A matrix in memory of its own, with a shard for each node."""
    stride = -(-matrix.packed_bytes(cpu.native, cpu.nodes) // STRIDE) * STRIDE
    memory = Memory(cpu.native, stride * cpu.nodes)
    result = PackedMatrix(cpu.native, matrix, memory, shards=cpu.nodes, stride=stride)
    result.pack(cpu, MatrixRows(numbers, scales, offsets))
    return result


def dense(matrix: PackedMatrix) -> Floats:
    """All rows as the library reads them."""
    return np.stack([matrix.row(row) for row in range(matrix.matrix.outputs)])


def table(cpu: Cpu, values: Floats) -> PackedMatrix:
    """Rows that an embedding copies as they are."""
    return packed(cpu, Matrix(len(values), values.shape[1], Format.FLOAT32), np.ascontiguousarray(values))


class OneProgram:
    """A program over some inputs and some further values.

    Args:
        cpu: runs it.
        inputs: float32 [rows, width] of the tokens, by name.
        widths: of the other values, by name.
        record: records the ops after the inputs are there.
        wanted: rows whose logits are wanted; those values whose names begin with "logits" have that many rows.
        rows: the largest batch, where more than the inputs have; vocab: ids, likewise.
        shape: fields of the Shape other than SHAPE's.
    """

    def __init__(
        self,
        cpu: Cpu,
        inputs: Mapping[str, Floats],
        widths: Mapping[str, int],
        record: Callable[[Program, Values], None],
        *,
        wanted: Sequence[int] = (),
        max_tokens: int = 0,
        **shape: Any,
    ) -> None:
        self.rows = len(next(iter(inputs.values())))
        self._wanted = np.array(wanted, dtype=np.int32)
        largest = max(self.rows, max_tokens, 1)
        places: dict[str, Value] = {}
        end = 0
        for name, width in {**{name: array.shape[1] for name, array in inputs.items()}, **widths}.items():
            rows = Rows.LOGITS if name.startswith("logits") else Rows.TOKENS
            places[name] = Value(end, width, rows)
            end += -(-largest * width // 16) * 16
        numbers = {"vocab": self.rows, **SHAPE, **shape}
        self.values = places
        self.program = Program(
            cpu,
            Shape(workspace=end, max_tokens=largest, max_sequences=largest, max_logits=largest, **numbers),
        )
        for name, array in inputs.items():
            self.program.embed(table(cpu, array), places[name])
        record(self.program, places)
        self._native = cpu.native

    def pool(self, num_blocks: int) -> Memory:
        """Blocks full of NaN, or of whatever those bytes mean in codes."""
        pool = Memory(self._native, num_blocks * self.program.block_bytes)
        pool.view(0, pool.nbytes)[:] = 0xFF
        return pool

    def run(
        self,
        pool: Memory | None = None,
        num_blocks: int = 4,
        sequences: Sequence[tuple[Any, int, int]] = (),
        adapters: Sequence[int] = (),
    ) -> Mapping[str, Floats]:
        """One step: copies of all values.

        Args:
            pool: blocks; None: some that nothing is in.
            sequences: (block table, start, length) of each; none given: each row is one, at position 0.
            adapters: that of each sequence; none given: none has one.
        """
        self.program.bind(pool or self.pool(num_blocks), num_blocks)
        everything = np.zeros(16, dtype=np.int32)
        given = sequences or [(everything, 0, 1)] * self.rows
        rows = (SequenceRows * len(given))()
        for row, (blocks, start, length) in zip(rows, given, strict=True):
            assert blocks.dtype == np.int32
            row.blocks, row.start, row.length = blocks.ctypes.data, start, length
        for row, adapter in zip(rows, adapters, strict=False):
            row.adapter = adapter
        ids = np.arange(self.rows, dtype=np.int32)
        scratch = np.zeros(max(1, len(self._wanted)) * 128, dtype=np.uint8)
        batch = Batch(
            token_ids=ids.ctypes.data,
            sequences=ctypes.addressof(rows),
            wanted=self._wanted.ctypes.data,
            sampling=scratch.ctypes.data,
            sampled=scratch.ctypes.data,
            num_tokens=self.rows,
            num_sequences=len(given),
            num_logits=len(self._wanted),
        )
        self._poison()
        self.program.run(batch)
        return {name: self.program.value(value, self._count(value)).copy() for name, value in self.values.items()}

    def _count(self, value: Value) -> int:
        return self.rows if value.rows == Rows.TOKENS else len(self._wanted)

    def _poison(self) -> None:
        for value in self.values.values():
            self.program.value(value, self._count(value))[:] = np.nan


def random_weight(rng: np.random.Generator, cpu: Cpu, matrix: Matrix) -> tuple[PackedMatrix, NDArray[np.float64]]:
    """A packed matrix of random numbers or codes, and what each entry of it is."""
    size = (matrix.outputs, matrix.inputs)
    if not matrix.is_integer:
        numbers, exact = _random_numbers(rng, matrix.format, size)
        return packed(cpu, matrix, numbers), exact
    codes = rng.integers(0, 256 if matrix.format is Format.INT8 else 16, size).astype(np.uint8)
    scales = (rng.random((matrix.outputs, matrix.groups)) * 0.02 + 0.001).astype(np.float32)
    offsets = rng.normal(0, 0.1, scales.shape).astype(np.float32) if matrix.offsets else None
    result = packed(cpu, matrix, codes, scales, offsets)
    values = np.array(matrix.codebook)[codes] if matrix.codebook else codes.astype(np.float64)
    stored = np.float16 if matrix.scales is Dtype.FLOAT16 else np.float32
    group = np.arange(matrix.inputs) // (matrix.group or matrix.inputs)
    exact = scales.astype(stored).astype(np.float64)[:, group] * (values - matrix.zero)
    return result, exact if offsets is None else exact + offsets.astype(stored).astype(np.float64)[:, group]


def _random_numbers(
    rng: np.random.Generator, kind: Format, size: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    values = rng.standard_normal(size).astype(np.float32)
    if kind is Format.FLOAT32:
        return values, values.astype(np.float64)
    if kind is Format.FLOAT16:
        half = values.astype(np.float16)
        return half, half.astype(np.float64)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
