"""Converting protobuf messages into Python values: the reverse of `fill`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from headrace._values.fill import is_map
from headrace._values.scalars import enum_name


def to_fields(message: Message) -> dict[str, Any]:
    """Return the fields that are set, by name.

    Enums become names without their prefix, Durations seconds, Timestamps datetimes in UTC, messages whose only field
    is a list that list, and other messages dicts.
    """
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def to_datetime(time: Timestamp) -> datetime:
    """Return a time in UTC."""
    return datetime.fromtimestamp(time.seconds + time.nanos / 1e9, tz=UTC)


def _seconds(span: Duration) -> float:
    return span.seconds + span.nanos / 1e9


_SPECIAL: dict[str, Callable[[Any], Any]] = {
    Duration.DESCRIPTOR.full_name: _seconds,
    Timestamp.DESCRIPTOR.full_name: to_datetime,
}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if is_map(field):
        return dict(value)
    if field.is_repeated:
        return [_item(field, item) for item in value]
    return _item(field, value)


def _item(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        return enum_name(field.enum_type, value)
    if field.message_type is None:
        return value
    special = _SPECIAL.get(field.message_type.full_name)
    if special is not None:
        return special(value)
    only = field.message_type.fields
    if len(only) == 1 and only[0].is_repeated:
        return _value(only[0], getattr(value, only[0].name))
    return to_fields(value)
