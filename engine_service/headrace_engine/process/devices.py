"""Detects the devices of this host."""

from __future__ import annotations

import ctypes

from headrace_engine.cuda_driver import has_driver


def has_cuda() -> bool:
    """Return True if torch can use a CUDA device. Imports torch only if the driver has one: that takes seconds."""
    if not has_driver():
        return False
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return False
    import torch

    return torch.cuda.is_available()
