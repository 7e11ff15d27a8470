"""Messages of protobuf from and to their JSON form, in time that is bounded by their size.

`json_format` converts each value by a few calls of Python. Long lists of plain values, which is what makes messages
large, are put into a message whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.status import details_of

MAX_VALUES = 131_072
"""Values of a message's JSON form beside lists of plain values: more than any that an engine takes; each costs 2 µs."""

_KINDS: dict[int, tuple[type, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: (int,),
    FieldDescriptor.CPPTYPE_UINT32: (int,),
    FieldDescriptor.CPPTYPE_INT64: (int,),
    FieldDescriptor.CPPTYPE_UINT64: (int,),
    FieldDescriptor.CPPTYPE_FLOAT: (int, float),
    FieldDescriptor.CPPTYPE_DOUBLE: (int, float),
    FieldDescriptor.CPPTYPE_STRING: (str,),
}
"""Types of JSON whose values a repeated field takes as they are. Of others `json_format` knows the forms."""

_MOST = float.fromhex("0x1.fffffep+127")
"""The largest number of float32; a field would take a larger one as infinity."""


def message_of(kind: type[Message], given: Mapping[str, Any]) -> Message:
    """Return a message from its JSON form.

    Raises:
        ParseError: it is none, or has more than MAX_VALUES.
    """
    message = kind()
    rest = _taken(message, given)
    if _count(rest) > MAX_VALUES:
        raise json_format.ParseError(f"it has more than {MAX_VALUES} values beside lists of numbers and texts")
    return json_format.ParseDict(rest, message)


def text_of(message: Message) -> bytes:
    """Return the JSON form of a message, without details of failures that this build does not know."""
    try:
        return json_format.MessageToJson(message, indent=None).encode()
    except TypeError:
        _drop_unknown_details(message)
        return json_format.MessageToJson(message, indent=None).encode()


def _taken(message: Message, given: Mapping[str, Any]) -> dict[str, Any]:
    """Put long lists of plain values into a message. Return what is left of its form."""
    rest = dict(given)
    for field in message.DESCRIPTOR.fields:
        names = [name for name in {field.name, field.json_name} if name in given]
        if len(names) != 1:
            continue
        value = given[names[0]]
        if field.is_repeated and isinstance(value, list) and _plain(field, value):
            try:
                getattr(message, field.name).extend(value)
            except (TypeError, ValueError, OverflowError):
                message.ClearField(field.name)  # `json_format` says what is wrong.
            else:
                del rest[names[0]]
        elif not field.is_repeated and _is_own(field) and isinstance(value, dict):
            rest[names[0]] = _taken(getattr(message, field.name), value)
    return rest


def _plain(field: Any, values: list[Any]) -> bool:
    """Return whether a repeated field takes these values as they are."""
    kinds = () if field.type == FieldDescriptor.TYPE_BYTES else _KINDS.get(field.cpp_type, ())
    if not (values and kinds and all(type(value) in kinds for value in values)):
        return False
    return bool(field.cpp_type != FieldDescriptor.CPPTYPE_FLOAT or -_MOST <= min(values) <= max(values) <= _MOST)


def _is_own(field: Any) -> bool:
    """Return whether a field is a message whose form is an object of its fields."""
    kind = field.message_type
    return kind is not None and not str(kind.full_name).startswith("google.protobuf.")


def _count(given: Any) -> int:
    """Return the number of values in a form, or somewhat more than MAX_VALUES."""
    level: list[Any] = [given]
    count = 0
    while level and count <= MAX_VALUES:
        inner: list[Any] = []
        for one in level:
            values = one.values() if isinstance(one, dict) else one
            count += len(values)
            inner += [value for value in values if isinstance(value, dict | list)]
        level = inner
    return count


def _drop_unknown_details(message: Message) -> None:
    """Drop from all failures in a message the details whose type this build does not know: JSON cannot hold them."""
    for field_of, value in message.ListFields():
        if field_of.message_type is None or field_of.message_type.GetOptions().map_entry:
            continue
        for one in value if field_of.is_repeated else (value,):
            if isinstance(one, Status):
                known = [detail for detail in one.details if details_of(Status(details=[detail]))]
                del one.details[:]
                one.details.extend(known)
            else:
                _drop_unknown_details(one)
