"""Threads and memory of core_cpu: freed by close(), or with the last reference."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from headrace_engine.environment import ISA_VARIABLE, Environment, forced_isa
from headrace_engine.errors import InvalidArgument
from headrace_engine.native.abi import Code, CpuOptions, Isa
from headrace_engine.native.errors import NativeError, NativeUnavailable
from headrace_engine.native.library import Native


def machine_isas(native: Native) -> list[Isa]:
    """Return the instruction sets of this machine that kernels are compiled for, lowest first."""
    return [isa for isa in Isa if native.handle.core_cpu_has_isa(isa)]


def choose_isa(native: Native, environment: Environment = os.environ) -> Isa:
    """Return the instruction set to use: the one the environment names, else the best of this machine.

    Raises:
        InvalidArgument: the environment names none, or one that this machine does not have.
        NativeUnavailable: this machine has not even AVX2.
    """
    best = Isa(native.handle.core_cpu_best_isa())
    if best is Isa.NONE:
        raise NativeUnavailable("this machine has no AVX2 with FMA and F16C: use the torch backend")
    text = forced_isa(environment)
    if not text:
        return best
    allowed = [isa.name.lower() for isa in machine_isas(native)]
    if text not in allowed:
        description = f'= "{text}" in the environment is not an instruction set of this machine; allowed: '
        raise InvalidArgument.field(ISA_VARIABLE, description + ", ".join(allowed))
    return Isa[text.upper()]


class Cpu:
    """A pool of threads, and the kernels that they run. A context manager.

    Args:
        native: core_cpu.
        threads: number of threads that compute, including the caller of a program.
        cpus: the logical processor of each thread; None: not pinned. With several nodes, the caller is pinned while a
            program runs; otherwise never.
        nodes: the memory node of each thread, numbered from 0 without gaps; the first thread is on node 0. None: all
            on one.
        isa: instruction set of the kernels; NONE: the machine's best.

    Attributes:
        native: the library.
        threads: number of threads that compute.
        nodes: number of their memory nodes.
        isa: instruction set of the kernels.

    Raises:
        NativeError: the machine lacks the instruction set, or cannot start more threads.
    """

    def __init__(
        self,
        native: Native,
        threads: int,
        *,
        cpus: Sequence[int] | None = None,
        nodes: Sequence[int] | None = None,
        isa: Isa = Isa.NONE,
    ) -> None:
        self.native = native
        self.threads = threads
        self.nodes = max(nodes) + 1 if nodes else 1
        for name, numbers in (("processors", cpus), ("nodes", nodes)):
            if numbers is not None and len(numbers) != threads:
                raise ValueError(f"{len(numbers)} {name} for {threads} threads")
        arrays = [(ctypes.c_int32 * threads)(*numbers) if numbers is not None else None for numbers in (cpus, nodes)]
        # The arrays are lent for the call: the library copies what it needs of them.
        options = CpuOptions(*(None if array is None else ctypes.addressof(array) for array in arrays), threads, isa)
        pool = ctypes.c_void_p()
        status = native.handle.core_cpu_create(options, ctypes.byref(pool))
        native.check("cpu_create", status, options)
        self.isa = Isa(native.handle.core_cpu_isa(pool))
        self._pool = pool
        self._free = weakref.finalize(self, native.handle.core_cpu_destroy, pool)

    @property
    def address(self) -> ctypes.c_void_p:
        """The CoreCpu, for the other modules of this package.

        Raises:
            ValueError: it is closed.
        """
        if not self._free.alive:
            raise ValueError("the threads of this Cpu have ended")
        return self._pool

    @property
    def progress(self) -> int:
        """Jobs that its threads have finished: grows while a program runs. Any thread may read it.

        Raises:
            ValueError: it is closed.
        """
        return int(self.native.handle.core_cpu_progress(self.address))

    def touch(self, memory: Memory, offset: int, nbytes: int, stride: int) -> None:
        """Place fresh memory on nodes: each node's threads touch the nbytes at offset + node · stride first."""
        if offset + (self.nodes - 1) * stride + nbytes > memory.nbytes:
            raise ValueError(f"{nbytes} bytes at {offset}, {self.nodes} times {stride} apart, of {memory.nbytes}")
        status = self.native.handle.core_cpu_touch(self.address, memory.address + offset, nbytes, stride)
        self.native.check("cpu_touch", status)

    def close(self) -> None:
        """End the threads. Close their programs first; closing twice is allowed."""
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Memory:
    """Zeroed memory in huge pages where the system has them, aligned to 2 MiB. Freed by close(), or when unused.

    Args:
        native: core_cpu.
        nbytes: size.

    Attributes:
        nbytes: size.

    Raises:
        NativeError: out of memory.
    """

    def __init__(self, native: Native, nbytes: int) -> None:
        address = native.handle.core_cpu_allocate(nbytes)
        if not address:
            raise NativeError(f"cpu_allocate: cannot allocate {nbytes} bytes", code=Code.NO_MEMORY)
        self.nbytes = nbytes
        self._address = int(address)
        # Views keep this object alive, addresses in structs do not: who hands those out closes it after their last use.
        self._free = weakref.finalize(self, native.handle.core_cpu_free, address)

    @property
    def address(self) -> int:
        """Address of the first byte.

        Raises:
            ValueError: the memory is freed.
        """
        if not self._free.alive:
            raise ValueError("this memory is freed")
        return self._address

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a view of nbytes bytes at offset. It keeps this object alive, but must not be used after close()."""
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of {self.nbytes}")
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.address + offset)
        buffer.owner = self  # type: ignore[attr-defined]  # Keeps the memory alive with the array.
        return np.ctypeslib.as_array(buffer)

    def close(self) -> None:
        """Free it. Closing twice is allowed."""
        self._free()


def allocations(native: Native) -> int:
    """Number of allocations of core_cpu since it was loaded: constant once models are warm."""
    return int(native.handle.core_cpu_allocations())
