"""Refusal of messages by form alone: unknown fields and values, durations that are none, and missing fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace_engine.errors import FieldViolation, InvalidArgument

_LONGEST = 315_576_000_000
"""Maximum seconds of a Duration, either way: protobuf's, ten thousand years."""

MAX_NAMED = 100
"""Maximum number of wrong fields that a refusal lists."""


def refuse_unknown(message: Message) -> None:
    """Refuse fields and enum values that this build does not know, and what `refuse_unknown_values` does, at any depth.

    Raises:
        InvalidArgument: INVALID_FIELD with every such field and value, but no more than MAX_NAMED.
    """
    _refuse(chain(_unknown_fields(message), _wrong_values(message)))


def refuse_unknown_values(message: Message) -> None:
    """Refuse enum values that this build does not know, and Durations beyond what protobuf allows.

    At any depth; unknown fields are allowed.

    Raises:
        InvalidArgument: INVALID_FIELD with every such value, but no more than MAX_NAMED.
    """
    _refuse(_wrong_values(message))


def required(message: Message, oneof: str, path: str = "") -> str:
    """Return the name of the field that is set in a oneof.

    Args:
        path: path of the oneof for the refusal; "" = its name.

    Raises:
        InvalidArgument: none is set.
    """
    name: str | None = message.WhichOneof(oneof)
    if name is None:
        allowed = ", ".join(field.name for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields)
        raise InvalidArgument.field(path or oneof, f"is not set; give one of {allowed}")
    return name


def _refuse(found: Iterator[FieldViolation]) -> None:
    violations = list(islice(found, MAX_NAMED))
    if violations:
        text = "; ".join(f"{violation.field} {violation.description}" for violation in violations)
        raise InvalidArgument(text, violations=violations)


def _unknown_fields(message: Message, path: str = "") -> Iterator[FieldViolation]:
    name = message.DESCRIPTOR.full_name
    for number in sorted({field.field_number for field in _unknown(message)}):
        yield FieldViolation(_join(path, f"#{number}"), f"is unknown: {name} has no field {number} in this build")
    for part_path, part in _parts(message, path):
        yield from _unknown_fields(part, part_path)


def _unknown(message: Message) -> Iterable[Any]:
    """Return the fields that this build does not know."""
    return cast(Iterable[Any], UnknownFieldSet(message))


def _wrong_values(message: Message, path: str = "") -> Iterator[FieldViolation]:
    for field, value in message.ListFields():
        if field.enum_type is None:
            continue
        for number in value if field.is_repeated else (value,):
            if number not in field.enum_type.values_by_number:
                allowed = ", ".join(each.name for each in field.enum_type.values if each.number)
                yield FieldViolation(_join(path, field.name), f"= {number} is unknown; allowed: {allowed}")
    for part_path, part in _parts(message, path):
        if isinstance(part, Duration):
            yield from _wrong_duration(part, part_path)
        else:
            yield from _wrong_values(part, part_path)


def _wrong_duration(part: Duration, path: str) -> Iterator[FieldViolation]:
    seconds, nanos = part.seconds, part.nanos
    if abs(seconds) > _LONGEST or abs(nanos) > 999_999_999 or seconds * nanos < 0:
        allowed = f"at most {_LONGEST} s and 999999999 ns either way, of one sign"
        yield FieldViolation(path, f"= {seconds} s and {nanos} ns is no duration; allowed: {allowed}")


def _parts(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """Yield the messages within a message, with their paths. No map of the contract has messages as values."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        name = _join(path, field.name)
        if field.is_repeated:
            yield from ((f"{name}[{index}]", part) for index, part in enumerate(value))
        else:
            yield name, value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
