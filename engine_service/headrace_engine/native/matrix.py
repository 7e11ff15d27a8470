"""Packed matrices of core_cpu."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native.abi import Dtype, Format, Pack, Weight
from headrace_engine.native.cpu import Cpu, Memory
from headrace_engine.native.library import Native

ALIGNMENT = 64
"""Alignment of packed matrices in memory, in bytes."""

_ROW_TYPES: dict[Format, type[np.generic]] = {
    Format.FLOAT32: np.float32,
    Format.BFLOAT16: np.uint16,
    Format.FLOAT16: np.float16,
    Format.INT8: np.uint8,
    Format.INT4: np.uint8,
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Storage of a matrix: weight = scale · (value − zero) + offset, or the numbers themselves.

    Attributes:
        outputs, inputs: number of rows and columns.
        group: inputs that share a scale, 16, 32, 64 or 128; 0: all inputs, and for float formats.
        scales: format of scales and offsets; None for float formats.
        offsets: True if groups have offsets.
        zero: the value that stands for zero.
        codebook: 16 values of INT4 codes; empty: a code is its own value.
    """

    outputs: int
    inputs: int
    format: Format
    group: int = 0
    scales: Dtype | None = None
    offsets: bool = False
    zero: int = 0
    codebook: tuple[float, ...] = ()

    @property
    def is_integer(self) -> bool:
        """True if it is stored as codes."""
        return self.format in (Format.INT8, Format.INT4)

    @property
    def groups(self) -> int:
        """Number of groups per row; 0 for float formats."""
        if not self.is_integer:
            return 0
        return -(-self.inputs // self.group) if self.group else 1

    def struct(self, address: int | None = None, shards: int = 1, stride: int = 0) -> Weight:
        """Return the CoreWeight with its data at an address, or in shards `stride` bytes apart."""
        values = (ctypes.c_float * 16)(*self.codebook)
        return Weight(
            data=address,
            outputs=self.outputs,
            inputs=self.inputs,
            format=self.format,
            group=self.group,
            scales=self.scales or 0,
            offsets=self.offsets,
            zero=self.zero,
            codebook=bool(self.codebook),
            stride=stride,
            shards=shards,
            values=values,
        )

    def packed_bytes(self, native: Native, shards: int = 1) -> int:
        """Return the packed size in bytes, per shard.

        Raises:
            ValueError: the storage is not supported.
        """
        nbytes = int(native.handle.core_weight_bytes(self.struct(shards=shards, stride=ALIGNMENT)))
        if not nbytes:
            raise ValueError(f"core_cpu has no {self}")
        return nbytes


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """Rows of a matrix before they are packed.

    Attributes:
        numbers: [rows, inputs] as float32, float16, uint16 (bits of bfloat16), or uint8 (one code an entry).
        scales, offsets: float32 [rows, groups], where the matrix has them.
    """

    numbers: NDArray[np.generic]
    scales: NDArray[np.float32] | None = None
    offsets: NDArray[np.float32] | None = None


class PackedMatrix:
    """A matrix in memory as core_cpu's kernels read it.

    Args:
        native: core_cpu.
        matrix: its storage.
        memory: retained as long as this object.
        offset: offset of its first byte in memory, a multiple of ALIGNMENT.
        shards: equal parts of its rows, one for each memory node.
        stride: bytes from the start of one shard to the next, a multiple of ALIGNMENT.

    Attributes:
        nbytes: size of each shard.
    """

    def __init__(
        self, native: Native, matrix: Matrix, memory: Memory, offset: int = 0, *, shards: int = 1, stride: int = 0
    ) -> None:
        self.matrix = matrix
        self.nbytes = matrix.packed_bytes(native, shards)
        end = offset + (shards - 1) * stride + self.nbytes
        if offset % ALIGNMENT or stride % ALIGNMENT or end > memory.nbytes or (shards > 1 and stride < self.nbytes):
            raise ValueError(f"{shards} times {self.nbytes} bytes at {offset}, {stride} apart, of {memory.nbytes}")
        self._native = native
        self._memory = memory
        # A bare address. Holding `memory` keeps it valid, unless it is closed: its owner closes the programs first.
        self.struct = matrix.struct(memory.address + offset, shards, stride)

    def pack(self, cpu: Cpu, rows: MatrixRows, first_row: int = 0) -> None:
        """Store some rows, on all threads.

        Args:
            rows: a multiple of 64, or up to the last row.
            first_row: index of the first of them in the matrix, a multiple of 64.

        Raises:
            ValueError: shapes or types do not match the matrix.
            NativeError: first_row or the number of rows is not a valid multiple.
        """
        count = len(rows.numbers)
        check_rows(self.matrix, rows.numbers, (count, self.matrix.inputs), _ROW_TYPES[self.matrix.format])
        scales = (count, self.matrix.groups) if self.matrix.is_integer else None
        for array, shape in ((rows.scales, scales), (rows.offsets, scales if self.matrix.offsets else None)):
            check_rows(self.matrix, array, shape, np.float32)
        # All addresses are lent for the call, which returns when no thread uses them any more.
        pack = Pack(
            weight=ctypes.addressof(self.struct),
            rows_data=rows.numbers.ctypes.data,
            row_scales=address_of(rows.scales),
            row_offsets=address_of(rows.offsets),
            first_row=first_row,
            rows=count,
        )
        self._native.check("weight_pack", self._native.handle.core_weight_pack(cpu.address, pack), pack)

    def row(self, number: int) -> NDArray[np.float32]:
        """Return one row as float32, [inputs]: as kernels compute with it, up to their rounding."""
        values = np.empty(self.matrix.inputs, dtype=np.float32)
        status = self._native.handle.core_weight_row(self.struct, number, values.ctypes.data)
        self._native.check("weight_row", status)
        return values


def check_rows(
    matrix: Matrix, array: NDArray[Any] | None, shape: tuple[int, int] | None, kind: type[np.generic]
) -> None:
    """Check an array of a matrix's rows before its address is handed out.

    Args:
        array: what is given; None: nothing.
        shape: what the matrix takes, with `kind`; None: nothing.

    Raises:
        ValueError: they differ, or the array is not contiguous.
    """
    if array is None and shape is None:
        return
    if array is None or array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
        found = "nothing" if array is None else f"{array.dtype} {array.shape}"
        wanted = "nothing" if shape is None else f"contiguous {kind.__name__} {shape}"
        raise ValueError(f"rows of {matrix} are {found}, not {wanted}")


def address_of(array: NDArray[Any] | None) -> int | None:
    """Return the address of an array's first entry; None for none."""
    return None if array is None else array.ctypes.data


def weight_version(native: Native) -> int:
    """Return the version of the layout in memory; matrices of other versions must be packed again."""
    return int(native.handle.core_weight_version())
