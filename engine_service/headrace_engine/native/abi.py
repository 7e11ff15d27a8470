"""What `csrc/core.h` declares, in ctypes, and how the two are compared when a library is loaded."""

from __future__ import annotations

import ctypes
from enum import IntEnum


class Dtype(IntEnum):
    """How numbers are stored: CoreDtype. Arithmetic is in float32 for all of them."""

    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3


class Code(IntEnum):
    """What went wrong in a call: CoreCode."""

    OK = 0
    NULL_POINTER = 1
    MISALIGNED = 2
    BAD_COUNT = 3
    BAD_EXTENT = 4
    BAD_NUMBER = 5
    UNKNOWN_DTYPE = 6
    DEVICE_ERROR = 7
    NO_MEMORY = 8
    NO_ISA = 9
    BAD_THREADS = 10
    BAD_GROUP = 11
    BAD_CODE = 12
    BAD_SHAPE = 13
    BAD_VALUE = 14
    BAD_BATCH = 15
    NOT_BOUND = 16


class RmsNorm(ctypes.Structure):
    """CoreRmsNorm."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("residual_out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("dtype", ctypes.c_int32),
    )


class _AbiEntry(ctypes.Structure):
    """CoreAbiEntry."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64), ("size", ctypes.c_int64))


RECORDS: dict[str, type[ctypes.Structure]] = {"CoreRmsNorm": RmsNorm}

Abi = dict[str, tuple[int, int]]
"""Facts by name: a struct's (alignment, size), a field's (offset, size), a constant's (value, 0)."""


def abi_here() -> Abi:
    """The facts that this module relies on."""
    abi: Abi = {f"CORE_{member.name}": (member.value, 0) for enum in (Dtype, Code) for member in enum}
    for name, record in RECORDS.items():
        abi[name] = (ctypes.alignment(record), ctypes.sizeof(record))
        for field, *_ in record._fields_:
            place = getattr(record, field)
            abi[f"{name}.{field}"] = (place.offset, place.size)
    return abi


def abi_there(handle: ctypes.CDLL) -> Abi:
    """The facts that a library states."""
    handle.core_abi.argtypes = ()
    handle.core_abi.restype = ctypes.POINTER(_AbiEntry)
    abi: Abi = {}
    for entry in handle.core_abi():
        if entry.name is None:
            break
        abi[entry.name.decode()] = (entry.value, entry.size)
    return abi


def abi_differences(here: Abi, there: Abi) -> list[str]:
    """One phrase for each fact that the two sides do not share."""
    return [
        f"{name} is {there.get(name, 'missing')} in the library and {here.get(name, 'missing')} here"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]


def field_at(record: type[ctypes.Structure], offset: int) -> str:
    """Name of the field that lies at an offset."""
    return next(field for field, *_ in record._fields_ if getattr(record, field).offset == offset)
