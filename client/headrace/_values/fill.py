"""Filling protobuf messages with Python values, guided by the messages' descriptors.

| field | value |
|---|---|
| number, text, flag | the Python type; None leaves the field unset, 0 and False are sent |
| enum | name of the value without its prefix, case-insensitive: "INT8" |
| Duration | seconds, or a timedelta |
| repeated | any iterable but a string |
| map | a mapping |
| message | a mapping of its fields, or the message itself; if its only field is a list, also the list |
| oneof message | also {"type": NAME, …} with the fields of that alternative |
| text whose name is "format", or ends with "_json" or "schema" | JSON text, or a value to serialize as JSON |
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from headrace_proto.wire.integers import INTEGERS

from headrace._values.refusals import invalid, unknown_key, unknown_name
from headrace._values.scalars import scalar

_MOST_DIGITS = 20
"""Maximum number of digits of a 64-bit integer."""

_DURATION = Duration.DESCRIPTOR.full_name
_MOST_SECONDS = 315_576_000_000  # Maximum of a protobuf Duration.


def fill(message: Message, fields: Mapping[str, Any], path: str = "") -> None:
    """Set fields of a message.

    Args:
        message: the message.
        fields: values by name, as in the table above.
        path: prefix of field names in errors.

    Raises:
        TypeError: there is no such field; similar names are listed.
        InvalidRequestError: a value has the wrong type or an unknown key, or is out of the range of its type.
    """
    names: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
    given = {name: value for name, value in fields.items() if value is not None}
    for name in fields:
        if name not in names and path:
            raise unknown_key(path, name, names)
        if name not in names:
            raise unknown_name(f'{message.DESCRIPTOR.name} has no field "{name}"', name, names)
    _check_alternatives(message.DESCRIPTOR, given, path)
    for name, value in given.items():
        _set(message, names[name], value, f"{path}.{name}" if path else name)


def _check_alternatives(descriptor: Any, given: Mapping[str, Any], path: str) -> None:
    for oneof in descriptor.oneofs:
        chosen = [field.name for field in oneof.fields if field.name in given]
        if len(chosen) > 1:
            raise invalid(path or oneof.name, chosen, "one of these, not several")


def _set(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    if is_map(field):
        _set_map(message, field, value, path)
    elif field.is_repeated:
        alone = field.cpp_type in INTEGERS and isinstance(value, int) and not isinstance(value, bool)
        _set_list(getattr(message, field.name), field, [value] if alone else value, path)
    elif field.message_type is not None:
        fill_one(getattr(message, field.name), value, path)
    else:
        setattr(message, field.name, scalar(field, value, path))


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map, which is a list of entries on the wire."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _set_map(message: Message, field: FieldDescriptor, value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise invalid(path, value, "a mapping")
    entry: Any = field.message_type and field.message_type.fields_by_name
    target = getattr(message, field.name)
    for key, item in value.items():
        item_path = f"{path}[{key!r}]"
        whole = scalar(entry["key"], _number(entry["key"], key), item_path)
        if whole in target:
            raise invalid(item_path, item, "given once, as a number or as its digits")
        target[whole] = scalar(entry["value"], item, item_path)


def _number(field: FieldDescriptor, key: Any) -> Any:
    """Return an integer key as a number; in JSON, and so in other systems' configs, it is a string of digits."""
    digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS
    return int(key) if digits and field.cpp_type in INTEGERS else key


def _set_list(target: Any, field: FieldDescriptor, value: Any, path: str) -> None:
    if isinstance(value, str | bytes | Mapping | Message) or not isinstance(value, Iterable):
        raise invalid(path, value, "a list")
    items = list(value)
    if field.message_type is not None:
        for index, item in enumerate(items):
            fill_one(target.add(), item, f"{path}[{index}]")
    elif not _extended(target, field, items):
        target.extend([scalar(field, item, f"{path}[{index}]") for index, item in enumerate(items)])


def _extended(target: Any, field: FieldDescriptor, items: list[Any]) -> bool:
    """Append integers at once, which is fast for long lists of ids; return False if one must be checked by itself."""
    if field.cpp_type not in INTEGERS or not set(map(type, items)) <= {int}:
        return False
    least, most = INTEGERS[field.cpp_type]
    if items and not least <= min(items) <= max(items) <= most:
        return False
    target.extend(items)
    return True


def fill_one(target: Message, value: Any, path: str) -> None:
    """Set a whole message, as the table above describes for fields that are messages.

    Raises:
        InvalidRequestError: a value has the wrong type or an unknown key, or is out of the range of its type.
    """
    descriptor: Any = target.DESCRIPTOR
    if isinstance(value, Message) and value.DESCRIPTOR is descriptor:
        target.CopyFrom(value)
    elif descriptor.full_name == _DURATION:
        _set_duration(target, value, path)
    elif isinstance(value, Mapping):
        _fill_tagged(target, value, path)
    elif len(descriptor.fields) == 1 and descriptor.fields[0].is_repeated:
        _set_list(getattr(target, descriptor.fields[0].name), descriptor.fields[0], value, path)
    else:
        raise invalid(path, value, f"a mapping with {', '.join(descriptor.fields_by_name) or 'no keys'}")
    target.SetInParent()


def _fill_tagged(target: Message, value: Mapping[str, Any], path: str) -> None:
    names = target.DESCRIPTOR.fields_by_name
    if "type" not in value or "type" in names or not _is_choice(target.DESCRIPTOR):
        fill(target, value, path)
        return
    kind = value["type"]
    rest = {key: item for key, item in value.items() if key != "type"}
    if not isinstance(kind, str) or kind not in names:
        raise invalid(f"{path}.type", kind, f"one of {', '.join(names)}")
    if kind not in rest and names[kind].message_type is not None:
        fill_one(getattr(target, kind), rest, f"{path}.{kind}")
        return
    _check_alternatives(target.DESCRIPTOR, {key: item for key, item in rest.items() if item is not None}, path)
    if rest.get(kind) is None:
        raise invalid(path, value, f'given with the key "{kind}"')
    for key in rest:
        if key != kind:
            raise unknown_key(path, key, ("type", kind))
    fill(target, rest, path)


def _is_choice(descriptor: Any) -> bool:
    # On the wire an optional scalar is a oneof too, whose name begins with an underscore.
    return any(not oneof.name.startswith("_") for oneof in descriptor.oneofs)


def _set_duration(target: Any, value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real | timedelta):
        raise invalid(path, value, "a number of seconds, or a timedelta")
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not math.isfinite(seconds) or abs(seconds) > _MOST_SECONDS:
        raise invalid(path, value, f"at most {_MOST_SECONDS} seconds")
    target.FromNanoseconds(round(seconds * 1e9))
