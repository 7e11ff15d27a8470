"""JSON schemas of the contract's messages, in protobuf's JSON form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_INTEGER: dict[str, Any] = {"type": ["integer", "string"]}
_LONG: dict[str, Any] = {"type": ["string", "integer"], "format": "int64"}
_NUMBER: dict[str, Any] = {"type": ["number", "string"]}
"""Numbers that JSON does not have are the texts "NaN", "Infinity" and "-Infinity"."""

_UNSET: dict[str, Any] = {"type": "null"}

_TYPES: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
    FieldDescriptor.TYPE_FLOAT: _NUMBER,
    FieldDescriptor.TYPE_INT64: _LONG,
    FieldDescriptor.TYPE_UINT64: _LONG,
    FieldDescriptor.TYPE_FIXED64: _LONG,
    FieldDescriptor.TYPE_SFIXED64: _LONG,
    FieldDescriptor.TYPE_SINT64: _LONG,
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}

_WELL_KNOWN: dict[str, dict[str, Any]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?\d+(\.\d{1,9})?s$"},
    "google.protobuf.Any": {"type": "object", "required": ["@type"], "properties": {"@type": {"type": "string"}}},
    "google.protobuf.Struct": {"type": "object"},
}


def schemas_of(messages: Iterable[Descriptor], reference: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """Return the schemas of messages and of those that they hold, by full name.

    Args:
        messages: the messages.
        reference: returns the reference to a schema by its name.
    """
    found: dict[str, dict[str, Any]] = {}
    waiting = list(messages)
    while waiting:
        message = waiting.pop()
        if message.full_name in found:
            continue
        if message.full_name in _WELL_KNOWN:
            found[message.full_name] = _WELL_KNOWN[message.full_name]
            continue
        properties = {field.json_name: {"anyOf": [_field(field, reference), _UNSET]} for field in message.fields}
        found[message.full_name] = {"type": "object", "properties": properties, "additionalProperties": False}
        waiting += [held for field in message.fields if (held := _held(field)) is not None]
    return found


def _field(field: FieldDescriptor, reference: Callable[[str], str]) -> dict[str, Any]:
    if (of_map := _map_value(field)) is not None:
        return {"type": "object", "additionalProperties": _value(of_map, reference)}
    value = _value(field, reference)
    return {"type": "array", "items": value} if field.is_repeated else value


def _value(field: FieldDescriptor, reference: Callable[[str], str]) -> dict[str, Any]:
    if field.message_type is not None:
        return {"$ref": reference(field.message_type.full_name)}
    if field.enum_type is not None:
        names = [value.name for value in field.enum_type.values]
        return {"anyOf": [{"type": "string", "enum": names}, {"type": "integer"}]}
    return _TYPES.get(field.type, _INTEGER)


def _held(field: FieldDescriptor) -> Descriptor | None:
    """Return the message that a field holds; None: it holds none."""
    of_map = _map_value(field)
    return (field if of_map is None else of_map).message_type


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """Return the field of a map's values; None: the field is no map."""
    message = field.message_type
    return message.fields_by_name["value"] if message is not None and message.GetOptions().map_entry else None
