"""Measures allocated memory, for a process that does one thing at a time."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_STATISTICS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _STATISTICS]


def allocated() -> int:
    """Return the bytes allocated from the C library, or the resident set if it does not count them."""
    with suppress(AttributeError, OSError):
        count = ctypes.CDLL(None).mallinfo2
        count.restype = _Mallinfo
        found = count()
        return int(found.uordblks) + int(found.hblkhd)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Return free memory to the system, if the C library supports it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
