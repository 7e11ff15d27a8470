"""Quantized matrices, packed for device kernels. Packing happens in host memory."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native.abi import Dtype, Format, Quantized, QuantizedPack
from headrace_engine.native.library import Native
from headrace_engine.native.matrix import Matrix, MatrixRows, address_of, check_rows

QUANTIZED_ALIGNMENT = 16
"""Alignment of packed matrices in memory, in bytes."""

LAYOUT = 1
"""Version of the layout in csrc/cuda/quantized/layout.h: increment it when the same matrix gets other bytes."""

_BITS = {Format.INT8: 8, Format.INT4: 4}


class QuantizedMatrix:
    """A quantized matrix in the layout of the device kernels.

    Args:
        native: core_cuda or core_sim.
        matrix: its storage: INT8 or INT4 in groups of 32, 64 or 128 or of a whole row, without a codebook.
        dtype: format of the rows that it multiplies, bfloat16 or float16.

    Attributes:
        matrix: its storage.
        nbytes: packed size.

    Raises:
        ValueError: the kernels do not support this storage.
    """

    def __init__(self, native: Native, matrix: Matrix, dtype: Dtype) -> None:
        self.matrix = matrix
        self._dtype = dtype
        self._native = native
        known = matrix.format in _BITS and not matrix.codebook
        self.nbytes = int(native.handle.core_quantized_bytes(self.struct())) if known else 0
        if not self.nbytes:
            raise ValueError(f"core_{native.library} has no {matrix} for {dtype.name.lower()}")

    def struct(self, address: int | None = None) -> Quantized:
        """Return the CoreQuantized with its data at an address."""
        matrix = self.matrix
        return Quantized(
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
        """Pack rows into host memory; threads may pack different rows concurrently.

        Args:
            address: address of nbytes bytes, aligned to QUANTIZED_ALIGNMENT.
            rows: a multiple of 64, or up to the last row.
            first_row: index of the first of them in the matrix, a multiple of 64.

        Raises:
            ValueError: shapes or types do not match the matrix.
            NativeError: first_row or the number of rows is not a valid multiple.
        """
        count = len(rows.numbers)
        check_rows(self.matrix, rows.numbers, (count, self.matrix.inputs), np.uint8)
        groups = (count, self.matrix.groups)
        check_rows(self.matrix, rows.scales, groups, np.float32)
        check_rows(self.matrix, rows.offsets, groups if self.matrix.offsets else None, np.float32)
        # All addresses are lent for the call, that of the struct too.
        struct = self.struct(address)
        pack = QuantizedPack(
            matrix=ctypes.addressof(struct),
            codes=rows.numbers.ctypes.data,
            row_scales=address_of(rows.scales),
            row_offsets=address_of(rows.offsets),
            first_row=first_row,
            rows=count,
        )
        self._native.check("quantized_pack", self._native.handle.core_quantized_pack(pack), pack)

    def row(self, address: int, number: int) -> NDArray[np.float32]:
        """Unpack one row of a matrix at an address in host memory, as float32 [inputs].

        Raises:
            NativeError: there is no such row.
        """
        values = np.empty(self.matrix.inputs, dtype=np.float32)
        status = self._native.handle.core_quantized_row(self.struct(address), number, values.ctypes.data)
        self._native.check("quantized_row", status)
        return values

    def splits(self, rows: int, multiprocessors: int) -> int:
        """Return the number of thread blocks that share the inputs of a product of `rows` rows."""
        return int(self._native.handle.core_quantized_splits(self.struct(), rows, multiprocessors))
