"""Programs of core_cpu: ops recorded once and replayed by one call per step."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native.abi import Batch, Shape, Value
from headrace_engine.native.cpu import Cpu, Memory
from headrace_engine.native.exchange import Exchange
from headrace_engine.native.program_ops import ProgramOps


class Program(ProgramOps):
    """A recorded step. Every op is checked when it is recorded; its weights and tables are retained until close().

    Args:
        cpu: the threads that run it; close it after the program.
        shape: the largest batch, and the model's numbers.

    Raises:
        NativeError: from every method: a value is invalid; names op and field.
    """

    def __init__(self, cpu: Cpu, shape: Shape) -> None:
        program, native = ctypes.c_void_p(), cpu.native
        status = native.handle.core_program_create(cpu.address, shape, ctypes.byref(program))
        native.check("program_create", status, shape)
        super().__init__(native, program, shape)
        self._cpu = cpu
        self._pool: Memory | None = None
        self._free = weakref.finalize(self, native.handle.core_program_destroy, program)

    @property
    def workspace_bytes(self) -> int:
        """Bytes that bind() allocates: for all values of the largest batch, and the kernels' scratch buffers."""
        return int(self._native.handle.core_program_workspace_bytes(self._program))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of keys and values in all layers."""
        return int(self._native.handle.core_program_block_bytes(self._program))

    @property
    def part_bytes(self) -> int:
        """Most bytes that a rank gives to an exchange; 0: there are no exchanges."""
        return int(self._native.handle.core_program_part_bytes(self._program))

    def join(self, exchange: Exchange) -> None:
        """Make exchanges there, before the first run."""
        # The program keeps the address, and nothing here holds the exchange: its owner closes it after the program.
        self._native.check("program_join", self._native.handle.core_program_join(self._program, exchange.address))

    def bind(self, pool: Memory, num_blocks: int) -> None:
        """Allocate the workspace at the first call, and use a pool of blocks, which is retained until close()."""
        if pool.nbytes < num_blocks * self.block_bytes:
            raise ValueError(f"{num_blocks} blocks of {self.block_bytes} bytes do not fit into {pool.nbytes}")
        status = self._native.handle.core_program_bind(self._program, pool.address, num_blocks)
        self._native.check("program_bind", status)
        # From here on the program writes to it, until it is bound to another one or destroyed.
        self._pool = pool

    def run(self, batch: Batch) -> None:
        """Run every op on the batch; returns when the step is done. One run at a time."""
        status = self._native.handle.core_program_run(self._program, batch)
        if status:
            self._native.check("program_run", status, batch)

    def value(self, value: Value, rows: int) -> NDArray[np.float32]:
        """Return a view of a value after a run, float32 [rows, width], valid until the next run.

        Raises:
            ValueError: nothing is bound yet.
        """
        address = self._native.handle.core_program_value(self._program, value)
        if not address:
            raise ValueError("the program is not bound")
        floats = (ctypes.c_float * (rows * value.width)).from_address(address)
        floats.owner = self  # Keeps the workspace alive with the array.
        return np.ctypeslib.as_array(floats).reshape(rows, value.width)

    def kv(self, layer: int, block: int, slot: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return keys and values of one token in one layer as float32, [kv_heads, head_dim] each."""
        found = np.empty((2, self.shape.kv_heads, self.shape.head_dim), dtype=np.float32)
        for values in (0, 1):
            address = found[values].ctypes.data
            status = self._native.handle.core_program_kv(self._program, layer, values, block, slot, address)
            self._native.check("program_kv", status)
        return found[0], found[1]

    def close(self) -> None:
        """Free everything. Closing twice is allowed."""
        self._free()  # First: until then the program points into what is dropped below.
        self._program = self._pool = None  # Later calls are refused.
        self._retained.clear()
