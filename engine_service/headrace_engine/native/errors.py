"""Errors of the native library, and the struct field at fault."""

from __future__ import annotations

import ctypes
from typing import Any

from headrace_engine.errors import Internal
from headrace_engine.native.abi import Code


class NativeUnavailable(Internal):
    """A library is missing, cannot be loaded, or was built from other headers than this package."""


class NativeError(Internal):
    """An op refused its arguments, or the device refused the launch.

    Args:
        code: kind of error.
        field: the parameter at fault; "" if none is.
        device_error: error code of the device's runtime; 0 if there is none.
    """

    def __init__(self, message: str, *, code: Code, field: str = "", device_error: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.device_error = device_error


def field_at(record: type[ctypes.Structure], offset: int) -> str:
    """Return the name of the field at an offset, such as "rows" or "projections[1].out".

    A nested struct is one field, unless the offset is beyond its first byte or the struct is an array entry.
    """
    for field, kind, *_ in record._fields_:
        member = getattr(record, field)
        if not member.offset <= offset < member.offset + member.size:
            continue
        inside = offset - member.offset
        entry: Any = getattr(kind, "_type_", None) if issubclass(kind, ctypes.Array) else None
        if isinstance(entry, type) and issubclass(entry, ctypes.Structure):
            number, inside = divmod(inside, ctypes.sizeof(entry))
            return f"{field}[{number}].{field_at(entry, inside)}"
        if inside and issubclass(kind, ctypes.Structure):
            return f"{field}.{field_at(kind, inside)}"
        return field
    raise ValueError(f"{record.__name__} has no field at byte {offset}")


def shown(record: ctypes.Structure, field: str) -> str:
    """Return " = VALUE" for a field named by `field_at`; "" for arrays. Addresses are hexadecimal, or "null"."""
    first, _, rest = field.partition(".")
    name, _, number = first.rstrip("]").partition("[")
    kinds = {name: kind for name, kind, *_ in record._fields_}
    value: Any = getattr(record, name)
    value = value[int(number)] if number else value
    if rest:
        return shown(value, rest)
    return "" if isinstance(value, ctypes.Array) else f" = {_text(value, kinds[name])}"


def _text(value: Any, kind: Any) -> str:
    if isinstance(value, ctypes.Structure):
        return ", ".join(f"{name} {_text(getattr(value, name), kind)}" for name, kind, *_ in value._fields_)
    if kind is ctypes.c_void_p:
        return "null" if value is None else hex(value)
    return str(value)
