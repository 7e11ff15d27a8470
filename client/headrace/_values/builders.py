"""Builders of configs with the field names of other systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, overload

from google.protobuf.message import Message

from headrace._base.refused_names import RefusedNames
from headrace._values.fill import fill
from headrace._values.refusals import unknown_name

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
B = TypeVar("B", bound="ConfigBuilder")
B_co = TypeVar("B_co", bound="ConfigBuilder", covariant=True)


class ConfigBuilder(RefusedNames):
    """Collects the fields of a config, and checks each value when it is set.

    Setting a field to None unsets it. Names in `refused` are fields or setters of the other system.
    """

    message: ClassVar[type[Message]]
    """The config's message type, which defines all fields and their types."""

    foreign: ClassVar[Mapping[str, str]] = {}
    """Our field names, by those of the other system."""

    neutral: ClassVar[Mapping[str, Any]] = {}
    """Values of refused fields that have no effect; they are accepted."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def update(self, fields: Mapping[str, Any]) -> Self:
        """Set several fields; set none of them if one is invalid.

        Raises:
            TypeError: there is no such field; a similar one is named.
            InvalidRequestError: a value has the wrong type, or is out of the range of its type.
        """
        changed = dict(self._fields)
        for name, value in fields.items():
            if name in self.neutral and value in (None, self.neutral[name]):
                continue
            field = self._field(name)
            if value is None:
                changed.pop(field, None)
            else:
                changed[field] = self._checked(field, value)
        self._fields = changed
        return self

    def build(self) -> dict[str, Any]:
        """Return the fields that are set, by our names: keywords for the client's methods."""
        return dict(self._fields)

    def converted(self, field: str, value: Any) -> Any:
        """Return a value in our form, from that of the other system."""
        return value

    def _field(self, name: str) -> str:
        if name in self.refused:
            raise TypeError(f"{type(self).__name__} has no field {name!r}: {self.refused[name]}")
        field, known = self.foreign.get(name, name), self.message.DESCRIPTOR.fields_by_name
        if field not in known:
            raise unknown_name(f'{type(self).__name__} has no field "{name}"', name, [*known, *self.foreign])
        return field

    def _checked(self, field: str, value: Any) -> Any:
        value = self.converted(field, list(value) if isinstance(value, Iterator) else value)
        fill(self.message(), {field: value})
        return value


class Set(Protocol[T_contra, B_co]):
    """Sets a field to a value, and returns the builder."""

    def __call__(self, value: T_contra | None, /) -> B_co:
        """Set the field; None unsets it."""


class Switch(Protocol[B_co]):
    """Switches a field on or off, and returns the builder."""

    def __call__(self, value: bool | None = True, /) -> B_co:
        """Set the field; None unsets it."""


class Setter(Generic[T]):
    """A method that sets the field of the same name, as in `temperature = Setter[float]("Divides the logits.")`."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, builder: None, owner: type) -> Setter[T]: ...

    @overload
    def __get__(self, builder: B, owner: type) -> Set[T, B]: ...

    def __get__(self, builder: Any, owner: type) -> Any:
        return self if builder is None else _setting(builder, self._name)


class Flag:
    """A method that sets the field of the same name, by default to True."""

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, builder: None, owner: type) -> Flag: ...

    @overload
    def __get__(self, builder: B, owner: type) -> Switch[B]: ...

    def __get__(self, builder: Any, owner: type) -> Any:
        if builder is None:
            return self
        set_to = _setting(builder, self._name)
        return lambda value=True: set_to(value)


def _setting(builder: B, name: str) -> Callable[[Any], B]:
    return lambda value: builder.update({name: value})
