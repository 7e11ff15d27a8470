"""Configs built field by field, under the names that other systems have for the fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, overload

from google.protobuf.message import Message

from headrace._values.fill import fill, unknown_name

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
B = TypeVar("B", bound="ConfigBuilder")
B_co = TypeVar("B_co", bound="ConfigBuilder", covariant=True)


class ConfigBuilder:
    """Collects the fields of a config; what cannot be sent is refused where it is set.

    A field that is None is as if it had never been set.
    """

    message: ClassVar[type[Message]]
    """The config on the wire: it knows every field and its kind."""

    foreign: ClassVar[Mapping[str, str]] = {}
    """Fields that have another name elsewhere, by that name."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Names of fields that there are not here, with what to do instead."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}

    def update(self, fields: Mapping[str, Any]) -> Self:
        """Sets several fields; where one of them is wrong, none.

        Raises:
            TypeError: no such field; the nearest one is named.
            InvalidRequestError: a value of the wrong kind, or out of the range that the wire can carry.
        """
        changed = dict(self._fields)
        for name, value in fields.items():
            field = self._field(name)
            if value is None:
                changed.pop(field, None)
            else:
                changed[field] = self._checked(field, value)
        self._fields = changed
        return self

    def build(self) -> dict[str, Any]:
        """The fields that were set, by their names here: keywords for the client's calls."""
        return dict(self._fields)

    def converted(self, field: str, value: Any) -> Any:
        """A value as it is written here, from how it is written elsewhere."""
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
        """None: as if it had never been set."""


class Switch(Protocol[B_co]):
    """Switches a field on, or off, and returns the builder."""

    def __call__(self, value: bool | None = True, /) -> B_co:
        """None: as if it had never been set."""


class Setter(Generic[T]):
    """A method that sets the field of its own name. Used as `temperature = Setter[float]("Divides the logits.")`."""

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
    """A method that switches the field of its own name, without an argument on."""

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
