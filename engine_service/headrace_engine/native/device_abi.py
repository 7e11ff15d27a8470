"""What `csrc/core_device.h` declares, in ctypes: the parameter structs of ops on a device."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from headrace_engine.native import device_kv, device_rows
from headrace_engine.native.abi import Abi, RmsNorm, facts_of

_ENUMS: dict[str, tuple[type[IntEnum], ...]] = {**device_kv.ENUMS, **device_rows.ENUMS}
"""By the prefix of their constants."""

OPS: dict[str, type[ctypes.Structure]] = {"rms_norm": RmsNorm, **device_kv.OPS, **device_rows.OPS}
"""Parameter structs by op: "rms_norm" for core_rms_norm."""

_RECORDS: dict[str, type[ctypes.Structure]] = {**device_kv.RECORDS, **device_rows.RECORDS}
"""By their names in C."""


def device_abi_here() -> Abi:
    """The facts of core_device.h that this package relies on."""
    return facts_of(_ENUMS, _RECORDS)
