"""Checks for NVIDIA's driver, without torch and without waking a device."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def has_driver() -> bool:
    """Return True if NVIDIA's driver is installed: without it there is no CUDA device; with it there may be none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
