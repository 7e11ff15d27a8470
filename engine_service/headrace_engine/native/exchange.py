"""Exchanges of core_cpu between the ranks of a model, in memory that they share."""

from __future__ import annotations

import ctypes
import weakref

from headrace_engine.native.abi import ExchangeOptions
from headrace_engine.native.library import Native


def exchange_bytes(native: Native, ranks: int, part_bytes: int) -> int:
    """Return the size of the file that an exchange of so many ranks takes.

    Raises:
        ValueError: there are none of these sizes.
    """
    nbytes = int(native.handle.core_exchange_bytes(ExchangeOptions(part_bytes=part_bytes, ranks=ranks)))
    if not nbytes:
        raise ValueError(f"{ranks} ranks cannot exchange parts of {part_bytes} bytes")
    return nbytes


class Exchange:
    """One rank's end. Programs that join it are closed before it.

    Args:
        native: core_cpu.
        file: descriptor of a file of zeros, `exchange_bytes` long; it may be closed afterwards.
        rank, ranks: number of this rank, and of all.
        part_bytes: most bytes that a rank gives to an exchange.

    Raises:
        NativeError: the file has another size, or cannot be mapped.
    """

    def __init__(self, native: Native, file: int, rank: int, ranks: int, part_bytes: int) -> None:
        options = ExchangeOptions(part_bytes=part_bytes, file=file, rank=rank, ranks=ranks)
        found = ctypes.c_void_p()
        # The mapping is this object's; the descriptor stays the caller's.
        status = native.handle.core_exchange_open(options, ctypes.byref(found))
        native.check("exchange_open", status, options)
        self._native = native
        self._exchange = found
        self._free = weakref.finalize(self, native.handle.core_exchange_close, found)

    @property
    def address(self) -> ctypes.c_void_p:
        """The CoreExchange, for the other modules of this package.

        Raises:
            ValueError: it is closed.
        """
        if not self._free.alive:
            raise ValueError("this exchange is closed")
        return self._exchange

    def leave(self) -> None:
        """End the exchanges of all ranks, those in progress too: runs fail from now on. Safe from any thread."""
        self._native.handle.core_exchange_leave(self.address)

    def close(self) -> None:
        """Unmap the memory. Closing twice is allowed."""
        self._free()
