"""Configs whose fields are keywords and attributes, under the names of another system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from headrace._values.builders import ConfigBuilder
from headrace.compat.counterparts import matched


class KeywordConfig(ConfigBuilder):
    """A config whose fields are keywords, and attributes that can be read and set.

    A field that is not given has the other system's default; one that is None has ours. Headrace's own fields are
    accepted too.

    Raises:
        TypeError, AttributeError: there is no such keyword or attribute; a similar one is named.
        InvalidRequestError: a value has the wrong type, or no counterpart here.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    """The other system's defaults."""

    unmatched: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = {}
    """Fields without a counterpart: the values that they may have, and what to do instead of another."""

    def __init__(self, **fields: Any) -> None:
        super().__init__()
        self._given: dict[str, Any] = {}
        self.update({**self.defaults, **fields})

    def update(self, fields: Mapping[str, Any]) -> Self:
        """Set several fields; set none of them if one is invalid."""
        super().update(self.translated(matched(fields, self.unmatched)))
        self._given = {**self._given, **fields}
        return self

    def translated(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with their values in our form, where one alone does not say it."""
        return dict(fields)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            if name in self._given:
                return self._given[name]
            self._check_attribute(name)
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._check_attribute(name)
            self.update({name: value})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._given == other._given

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    def _check_attribute(self, name: str) -> None:
        if name not in self.unmatched:
            try:
                self._field(name)
            except TypeError as error:
                raise AttributeError(str(error)) from None
