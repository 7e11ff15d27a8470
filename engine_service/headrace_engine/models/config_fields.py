"""Typed access to a model's config: a value of the wrong type is an error that names file, field and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace_engine.errors import BadModel, shown

INT32 = 2**31 - 1
"""Maximum of counts in a file, such as positions and ids: kernels and the wire use 32 bits."""

LEAST_NUMBER, MOST_NUMBER = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Range of numbers in a file: models compute with them in float32."""


class ConfigFields:
    """The values of a JSON object or of GGUF metadata. A null counts as absent.

    Args:
        values: by name.
        source: their origin, for messages: "config.json".
        prefix: prepended to names in lookups and messages, such as "llama.".
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._values = values
        self.source = source
        self.prefix = prefix

    def get(self, name: str) -> Any:
        """Return the raw value; None if it is absent."""
        return self._values.get(self.prefix + name)

    def has(self, name: str) -> bool:
        """True if the name is present, even with a null."""
        return self.prefix + name in self._values

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = INT32) -> int:
        """Return an integer in a range.

        Raises:
            BadModel: it is absent without a default, of another type or out of range. The methods below raise the same.
        """
        value = self._or_default(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(name, f"must be an integer from {minimum} to {maximum}")
        return value

    def number(self, name: str, default: float | None = None, *, minimum: float | None = None) -> float:
        """Return a number of float32 above zero, and not below the minimum if one is given."""
        value = self._or_default(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(name, "must be a finite number")
        if value <= 0 or (minimum is not None and value < minimum):
            raise self.error(name, f"must be {'above 0' if minimum is None else f'at least {minimum:g}'}")
        if not LEAST_NUMBER <= value <= MOST_NUMBER:
            raise self.error(name, f"must be from {LEAST_NUMBER:g} to {MOST_NUMBER:g}, as float32 has them")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._or_default(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._or_default(name, default)
        if not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def table(self, name: str) -> ConfigFields | None:
        """Return a nested object; None if it is absent or empty."""
        value = self.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return _NestedFields(value, self.source, f"{self.prefix}{name}.")

    def replacing(self, values: Mapping[str, Any]) -> ConfigFields:
        """Return the fields with these values in place of their own."""
        named = {self.prefix + name: value for name, value in values.items()}
        return ConfigFields({**self._values, **named}, self.source, self.prefix)

    def described(self, name: str) -> str:
        """Return a field with its source and value, such as "config.json: vocab_size = 5"."""
        value = self.get(name)
        found = "is absent" if value is None else f"= {shown(value)}"
        return f"{self.source}: {self.prefix}{name} {found}"

    def error(self, name: str, problem: str) -> BadModel:
        """Return an error about one field, with its value."""
        joint = " and" if self.get(name) is None else ""
        return BadModel(f"{self.described(name)}{joint} {problem}")

    def _or_default(self, name: str, default: object) -> Any:
        value = self.get(name)
        return default if value is None else value


class _NestedFields(ConfigFields):
    """Fields of a nested object: the prefix is only used in messages."""

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return name in self._values

    def replacing(self, values: Mapping[str, Any]) -> ConfigFields:
        return _NestedFields({**self._values, **values}, self.source, self.prefix)
