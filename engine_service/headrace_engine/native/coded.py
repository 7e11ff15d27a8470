"""Matrices of codes, packed for the kernels of devices. Packing happens in the host's memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native.abi import Coded, CodedPack, Dtype, Format
from headrace_engine.native.library import Native
from headrace_engine.native.matrix import Matrix, MatrixRows

CODED_ALIGNMENT = 16
"""Of packed matrices in memory."""

LAYOUT = 1
"""Counts how csrc/cuda/quantized/layout.h lays matrices out: one more where the same matrix gets other bytes."""

_BITS = {Format.INT8: 8, Format.INT4: 4}


class CodedMatrix:
    """A matrix of codes as the kernels of a device read it.

    Args:
        native: core_cuda or core_sim.
        matrix: how it is stored: INT8 or INT4 in groups of 32, 64 or 128 or of a whole row, without a codebook.
        dtype: of the rows that it multiplies, bfloat16 or float16.

    Attributes:
        matrix: how it is stored.
        nbytes: bytes that it takes when packed.

    Raises:
        ValueError: the kernels have no such storage.
    """

    def __init__(self, native: Native, matrix: Matrix, dtype: Dtype) -> None:
        self.matrix = matrix
        self._dtype = dtype
        self._native = native
        known = matrix.format in _BITS and not matrix.codebook
        self.nbytes = int(native.handle.core_coded_bytes(self.struct())) if known else 0
        if not self.nbytes:
            raise ValueError(f"core_{native.library} has no {matrix} for {dtype.name.lower()}")

    def struct(self, address: int | None = None) -> Coded:
        """The CoreCoded whose data lies at an address."""
        matrix = self.matrix
        return Coded(
            data=address,
            outputs=matrix.outputs,
            inputs=matrix.inputs,
            bits=_BITS.get(matrix.format, 0),
            group=matrix.group,
            scales=matrix.scales or 0,
            offsets=matrix.offsets,
            zero=matrix.zero,
            dtype=self._dtype,
        )

    def pack(self, address: int, rows: MatrixRows, first_row: int = 0) -> None:
        """Store some rows in the host's memory; threads may store different ones at once.

        Args:
            address: of nbytes bytes, aligned to CODED_ALIGNMENT.
            rows: a multiple of 64, or up to the last row.
            first_row: where they go, a multiple of 64.

        Raises:
            ValueError: the arrays are not those of the matrix.
            NativeError: the rows do not begin or end where they may.
        """
        count = len(rows.numbers)
        self._require(rows.numbers, (count, self.matrix.inputs), np.uint8)
        groups = (count, self.matrix.groups)
        self._require(rows.scales, groups, np.float32)
        self._require(rows.offsets, groups if self.matrix.offsets else None, np.float32)
        struct = self.struct(address)
        pack = CodedPack(
            matrix=ctypes.addressof(struct),
            codes=rows.numbers.ctypes.data,
            row_scales=None if rows.scales is None else rows.scales.ctypes.data,
            row_offsets=None if rows.offsets is None else rows.offsets.ctypes.data,
            first_row=first_row,
            rows=count,
        )
        self._native.check("coded_pack", self._native.handle.core_coded_pack(pack), pack)

    def row(self, address: int, number: int) -> NDArray[np.float32]:
        """One row, packed in the host's memory at an address, as float32 [inputs].

        Raises:
            NativeError: there is no such row.
        """
        values = np.empty(self.matrix.inputs, dtype=np.float32)
        status = self._native.handle.core_coded_row(self.struct(address), number, values.ctypes.data)
        self._native.check("coded_row", status)
        return values

    def splits(self, rows: int, multiprocessors: int) -> int:
        """How many blocks are to share a piece of a product of so many rows."""
        return int(self._native.handle.core_coded_splits(self.struct(), rows, multiprocessors))

    def _require(self, array: NDArray[Any] | None, shape: tuple[int, int] | None, kind: type[np.generic]) -> None:
        if array is None and shape is None:
            return
        if array is None or array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
            found = "nothing" if array is None else f"{array.dtype} {array.shape}"
            raise ValueError(f"rows of {self.matrix} are {found}, not contiguous {kind.__name__} {shape}")
