"""Typed access to a model's config: a value of the wrong kind is an error that names file, field and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace_engine.errors import BadModel, shown

INT32 = 2**31 - 1
"""Most of what a file counts, such as positions and ids: kernels and the wire hold no more."""


class ConfigFields:
    """The values of a JSON object or of GGUF metadata. A null counts as absent.

    Args:
        values: by name.
        source: where they come from, for messages: "config.json".
        prefix: put before a name to look it up and to speak of it, such as "llama.".
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._values = values
        self.source = source
        self.prefix = prefix

    def get(self, name: str) -> Any:
        """The value as it stands; None where it is absent."""
        return self._values.get(self.prefix + name)

    def has(self, name: str) -> bool:
        """The name is there, be it with a null."""
        return self.prefix + name in self._values

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = INT32) -> int:
        """An integer in a range.

        Raises:
            BadModel: it is absent without a default, of another kind or out of range. So do the methods below.
        """
        value = self._or_default(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(name, f"must be an integer from {minimum} to {maximum}")
        return value

    def number(self, name: str, default: float | None = None, *, minimum: float | None = None) -> float:
        """A finite number, above zero, and at least the minimum where there is one."""
        value = self._or_default(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(name, "must be a finite number")
        if value <= 0 or (minimum is not None and value < minimum):
            raise self.error(name, f"must be {'above 0' if minimum is None else f'at least {minimum:g}'}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._or_default(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._or_default(name, default)
        if not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def table(self, name: str) -> ConfigFields | None:
        """A nested object; None where it is absent or empty."""
        value = self.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return _NestedFields(value, self.source, f"{self.prefix}{name}.")

    def error(self, name: str, problem: str) -> BadModel:
        """An error about one field, with its value."""
        value = self.get(name)
        found = "is absent and" if value is None else f"= {shown(value)}"
        return BadModel(f"{self.source}: {self.prefix}{name} {found} {problem}")

    def _or_default(self, name: str, default: object) -> Any:
        value = self.get(name)
        return default if value is None else value


class _NestedFields(ConfigFields):
    """Fields of a nested object: the prefix only serves messages."""

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return name in self._values
