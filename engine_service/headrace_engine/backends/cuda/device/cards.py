"""Checks that a CUDA device can be used, and advises what to do if not."""

from __future__ import annotations

import ctypes

import torch

from headrace_engine.errors import InvalidArgument

OLDEST = (8, 0)
"""Minimum compute capability of csrc's kernels."""

_HIDDEN = "the NVIDIA driver shows no device: see nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides all"

_DRIVER = 13000
"""Minimum CUDA version of the driver for code compiled by nvcc 13."""


def check_card(index: int) -> None:
    """Refuse a device that cannot be used; the message says what to do.

    Raises:
        InvalidArgument: names compute_unit or device_list.
    """
    problem = why_no_cuda()
    if problem:
        raise InvalidArgument.field("config.compute_unit", f"= CUDA, but {problem}; allowed here: CPU")
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        text = f"= [{index}] is out of range; allowed for CUDA: 0 to {count - 1}"
        raise InvalidArgument.field("config.device_list", text)
    problem = too_old(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
    if problem:
        raise InvalidArgument.field("config.device_list", f"= [{index}]: {problem}")


def too_old(name: str, capability: tuple[int, int]) -> str:
    """Return why a card of this compute capability cannot be used; "" if it can."""
    if capability >= OLDEST:
        return ""
    has, needs = (".".join(map(str, version)) for version in (capability, OLDEST))
    return f"{name} has compute capability {has}, and the kernels need {needs} (A100, RTX 30 and later)"


def why_no_cuda() -> str:
    """Return why there is no usable CUDA device; "" if there is one."""
    if torch.version.cuda is None:
        return "this torch is a CPU build: install one for CUDA"
    version = driver_version()
    if version is None:
        return "there is no NVIDIA driver: install one, or give the container access to the host's (--gpus all)"
    if version < _DRIVER:
        return (
            f"the NVIDIA driver is for CUDA {shown_version(version)}, and this build needs {shown_version(_DRIVER)}: "
            "update the driver to 580 or later"
        )
    return "" if torch.cuda.is_available() else _HIDDEN


def driver_version() -> int | None:
    """Return the CUDA version of the driver, 1000 · major + 10 · minor; None: there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def shown_version(version: int) -> str:
    """Return a driver's CUDA version as people write it, such as "13.0"."""
    return f"{version // 1000}.{version % 1000 // 10}"
