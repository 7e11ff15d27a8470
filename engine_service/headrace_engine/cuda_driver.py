"""Whether this host could have a CUDA device at all, which is known without torch and without waking a card."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def has_driver() -> bool:
    """NVIDIA's driver is installed. Without it there is no CUDA device; with it there may be none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
