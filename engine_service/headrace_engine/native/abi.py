"""What `csrc/core.h` declares, in ctypes, and how the two are compared when a library is loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any


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
    """The facts of core.h that this package relies on."""
    return facts_of({"CORE_": (Dtype, Code)}, RECORDS)


def facts_of(enums: Mapping[str, Sequence[type[IntEnum]]], records: Mapping[str, type[ctypes.Structure]]) -> Abi:
    """The facts of some enums, by the prefix of their constants, and of some structs, by their names in C."""
    abi: Abi = {
        f"{prefix}{member.name}": (member.value, 0) for prefix in enums for enum in enums[prefix] for member in enum
    }
    for name, record in records.items():
        abi[name] = (ctypes.alignment(record), ctypes.sizeof(record))
        for field, *_ in record._fields_:
            place = getattr(record, field)
            abi[f"{name}.{field}"] = (place.offset, place.size)
    return abi


def abi_there(handle: ctypes.CDLL, function: str = "core_abi") -> Abi:
    """The facts that a library states through one of its functions."""
    entries = getattr(handle, function)
    entries.argtypes = ()
    entries.restype = ctypes.POINTER(_AbiEntry)
    abi: Abi = {}
    for entry in entries():
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
    """Name of the field that lies at an offset, such as "rows" or "projections[1].out".

    A struct in a struct is one field, unless the offset lies behind its first byte or it is an entry of an array.
    """
    for field, kind, *_ in record._fields_:
        place = getattr(record, field)
        if not place.offset <= offset < place.offset + place.size:
            continue
        inside = offset - place.offset
        entry: Any = getattr(kind, "_type_", None) if issubclass(kind, ctypes.Array) else None
        if isinstance(entry, type) and issubclass(entry, ctypes.Structure):
            number, inside = divmod(inside, ctypes.sizeof(entry))
            return f"{field}[{number}].{field_at(entry, inside)}"
        if inside and issubclass(kind, ctypes.Structure):
            return f"{field}.{field_at(kind, inside)}"
        return field
    raise ValueError(f"{record.__name__} has no field at byte {offset}")


def value_at(record: ctypes.Structure, field: str) -> Any:
    """The value of a field that `field_at` named."""
    value: Any = record
    for part in field.split("."):
        name, _, number = part.rstrip("]").partition("[")
        value = getattr(value, name)
        value = value[int(number)] if number else value
    return value
