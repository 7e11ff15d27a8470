"""Conversion of single values to what a field of a message takes."""

from __future__ import annotations

import json
import numbers
import operator
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from headrace_proto.wire.integers import INTEGERS

from headrace._values.refusals import invalid

_REALS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def scalar(field: FieldDescriptor, value: Any, path: str) -> Any:
    """Return a value as a field takes it.

    Raises:
        InvalidRequestError: it has the wrong type, or is out of the range of its type.
    """
    if field.enum_type is not None:
        return _enum(field.enum_type, value, path)
    if field.cpp_type in INTEGERS:
        return _integer(value, *INTEGERS[field.cpp_type], path)
    if field.cpp_type in _REALS:
        return _real(value, path)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _flag(value, path)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value, path)
    return _text(field.name, value, path)


def _integer(value: Any, least: int, most: int, path: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise invalid(path, value, "a whole number") from None
    if isinstance(value, bool):
        raise invalid(path, value, "a whole number")
    if number < least:
        raise invalid(path, value, f"at least {least}" if least else "a non-negative whole number")
    if number > most:
        raise invalid(path, value, f"at most {most}")
    return number


def _real(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise invalid(path, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise invalid(path, value, "a number that a double can hold") from None


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(path, value, "True or False")
    return value


def _bytes(value: Any, path: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise invalid(path, value, "bytes")
    return bytes(value)


def _text(name: str, value: Any, path: str) -> str:
    if (name.endswith(("_json", "schema")) or name == "format") and not isinstance(value, str):
        value = to_json(value, path)
    if not isinstance(value, str):
        raise invalid(path, value, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(path, value, "text without lone surrogates") from None
    return value


def to_json(value: Any, path: str) -> str:
    """Return a value as JSON text.

    Raises:
        InvalidRequestError: the value cannot be serialized.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise invalid(path, value, "serializable as JSON") from None
    except RecursionError:
        raise invalid(path, value, "nested less deeply") from None


def _enum(kind: EnumDescriptor, value: Any, path: str) -> int:
    names = {enum_name(kind, number): number for number in sorted(kind.values_by_number) if number != 0}
    found = names.get(value.upper()) if isinstance(value, str) else None
    if found is None:
        raise invalid(path, value, f"one of {', '.join(names)}")
    return found


def enum_name(kind: EnumDescriptor, number: int) -> str:
    """Return the name of an enum value without its prefix; for one newer than this version, the number as text."""
    value = kind.values_by_number.get(number)
    if value is None:
        return str(number)
    # The name of every enum's zero value is the prefix followed by UNSPECIFIED.
    return value.name.removeprefix(kind.values_by_number[0].name.removesuffix("UNSPECIFIED"))
