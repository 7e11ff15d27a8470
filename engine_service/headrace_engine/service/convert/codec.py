"""Codecs between wire messages and domain dataclasses, field by field of the same name.

An unset field is None (an empty tuple or mapping where it repeats), never a zero; an enum's UNSPECIFIED is unset.
Durations are seconds and Timestamps are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

D = TypeVar("D")
M = TypeVar("M", bound=Message)

_NANOS = 1_000_000_000


class Pair(NamedTuple):
    """Conversions of one kind of field, from the wire and to the wire.

    Attributes:
        read: converts the field's value in a message to the domain's value.
        write: writes the domain's value into the field's message, or converts it to a scalar.
    """

    read: Callable[[Any], Any]
    write: Callable[..., Any]


def read_seconds(message: Any) -> float:
    """Return the seconds of a Duration or Timestamp."""
    return float(message.seconds + message.nanos / _NANOS)


def write_seconds(value: float, message: Any) -> None:
    """Fill a Duration or Timestamp; its parts have the sign of the value."""
    nanos = round(abs(value) * _NANOS)
    sign = -1 if value < 0 else 1
    message.seconds, message.nanos = sign * (nanos // _NANOS), sign * (nanos % _NANOS)


def enum_pair(descriptor: EnumDescriptor, domain: type[StrEnum]) -> Pair:
    """Return the conversions of an enum: names without the prefix; UNSPECIFIED is None."""
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    members = {v.number: domain(v.name.removeprefix(prefix)) for v in descriptor.values if v.number}
    numbers = {member: number for number, member in members.items()}
    return Pair(lambda number: members[number] if number else None, numbers.__getitem__)


_SECONDS = Pair(read_seconds, write_seconds)
_SAME = Pair(lambda value: value, lambda value: value)
_MESSAGES = {
    "google.protobuf.Duration": _SECONDS,
    "google.protobuf.Timestamp": _SECONDS,
    "headrace.v1.TokenIds": Pair(lambda message: tuple(message.ids), lambda ids, message: message.ids.extend(ids)),
}


class Codec(Generic[D, M]):
    """Converts one message type to one dataclass and back.

    A field that only one of the two has is left to the caller.

    Args:
        domain: the dataclass.
        message: the message type.
        *parts: codecs of the messages in its fields.
        flat: fields of the dataclass that are dataclasses, whose fields the message has at its top level.
        **special: conversions of fields that need their own, by name.
    """

    def __init__(
        self,
        domain: type[D],
        message: type[M],
        *parts: Codec[Any, Any],
        flat: Iterable[str] = (),
        **special: Pair,
    ) -> None:
        self._domain, self._message = domain, message
        self.message_name: str = message.DESCRIPTOR.full_name
        hints, derived = get_type_hints(domain), _property_hints(domain)
        known = {**hints, **derived}
        described = [field for field in message.DESCRIPTOR.fields if field.name in known]
        messages = {**_MESSAGES, **{part.message_name: Pair(part.to_domain, part.fill) for part in parts}}
        self._fields = [
            _FieldCodec(field, known[field.name], special.get(field.name) or _pair(field, known[field.name], messages))
            for field in described
        ]
        self._readable = [codec for codec in self._fields if codec.name not in derived]
        self._flat = {name: Codec(hints[name], message) for name in flat}

    def to_domain(self, message: M) -> D:
        """Convert a message to a domain object."""
        given = ((codec.name, codec.get(message)) for codec in self._readable)
        groups = {name: codec.to_domain(message) for name, codec in self._flat.items()}
        return self._domain(**{name: value for name, value in given if value is not None}, **groups)

    def to_wire(self, value: D) -> M:
        """Convert a domain object to a message."""
        message = self._message()
        self.fill(value, message)
        return message

    def fill(self, value: D, message: M) -> None:
        """Write a domain object into a message."""
        for codec in self._fields:
            part = getattr(value, codec.name)
            if part is not None and part != ():
                codec.put(message, part)
        for name, group in self._flat.items():
            group.fill(getattr(value, name), message)


class _FieldCodec:
    """One field: `get` reads it from a message (None: unset), `put` writes a value that is not None."""

    def __init__(self, field: Any, hint: Any, pair: Pair) -> None:
        self.name = field.name
        if field.is_repeated:
            self.get, self.put = _repeated(field, pair, list if get_origin(hint) is list else tuple)
        else:
            self.get, self.put = _single(field, pair)


Getter = Callable[[Any], Any]
Putter = Callable[[Any, Any], None]


def _property_hints(domain: type) -> dict[str, Any]:
    """Return the types of the properties, which are written but never read."""
    properties = {name: value.fget for name, value in vars(domain).items() if isinstance(value, property)}
    return {name: get_type_hints(function)["return"] for name, function in properties.items()}


def _pair(field: Any, hint: Any, messages: Mapping[str, Pair]) -> Pair:
    if field.enum_type is not None:
        return enum_pair(field.enum_type, _member(hint, field))
    if field.message_type is not None and not _is_map(field):
        return messages[field.message_type.full_name]
    return _SAME


def _member(hint: Any, field: Any) -> type[StrEnum]:
    """Return the enum in a type hint such as `ModelFormat | None`."""
    members = [each for each in (get_args(hint) or (hint,)) if each is not NoneType]
    if not issubclass(members[0], StrEnum):
        raise TypeError(f"{field.full_name} is an enum, its domain type {hint} is not")
    return cast(type[StrEnum], members[0])


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _single(field: Any, pair: Pair) -> tuple[Getter, Putter]:
    name, is_message, has_presence = field.name, field.message_type is not None, field.has_presence

    def get(message: Any) -> Any:
        return pair.read(getattr(message, name)) if not has_presence or message.HasField(name) else None

    def put(message: Any, value: Any) -> None:
        if is_message:
            part = getattr(message, name)
            part.SetInParent()
            pair.write(value, part)
        else:
            setattr(message, name, pair.write(value))

    return get, put


def _repeated(field: Any, pair: Pair, kind: type) -> tuple[Getter, Putter]:
    name, is_message = field.name, field.message_type is not None
    if _is_map(field):
        return lambda message: dict(getattr(message, name)), lambda message, value: _put_map(message, name, value)

    def get(message: Any) -> Any:
        values = getattr(message, name)
        return kind(values) if pair is _SAME else kind(map(pair.read, values))

    def put(message: Any, values: Any) -> None:
        target = getattr(message, name)
        if not is_message:
            target.extend(values if pair is _SAME else map(pair.write, values))
            return
        for value in values:
            pair.write(value, target.add())

    return get, put


def _put_map(message: Any, name: str, value: Mapping[Any, Any]) -> None:
    getattr(message, name).update(value)
