"""Values that templates read in two forms: content in parts also as one text, arguments of tool calls also as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

BETWEEN_PARTS = "\n"
"""Separator of parts where a template reads the content of a message as one text."""

Change = Callable[[str], str]


class Parts(list[dict[str, Any]]):
    """Content in parts, which becomes their joined text where a template concatenates or prints it."""

    joined = False
    """True once content with several parts was read as one text."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> Parts:
        """Return one part for each text."""
        return cls({"type": "text", "text": text} for text in texts)

    @property
    def texts(self) -> list[str]:
        """Texts of the parts."""
        return [part["text"] for part in self]

    def with_texts(self, texts: Iterable[str]) -> Parts:
        """Return the same parts with other texts."""
        return Parts({**part, "text": text} for part, text in zip(self, texts, strict=True))

    def __str__(self) -> str:
        self.joined = self.joined or len(self) > 1
        return BETWEEN_PARTS.join(self.texts)

    def __add__(self, other: Any) -> Any:
        return str(self) + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + str(self) if isinstance(other, str) else NotImplemented

    def __contains__(self, item: object) -> bool:
        return item in BETWEEN_PARTS.join(self.texts) if isinstance(item, str) else super().__contains__(item)


class Arguments(dict[str, Any]):
    """Arguments of a tool call: a mapping, which becomes the sent JSON where a template concatenates or prints it.

    It has no public attributes of its own, which would hide arguments of the same name from templates.

    Args:
        json_text: the JSON as sent.
    """

    def __init__(self, values: Mapping[str, Any], json_text: str) -> None:
        super().__init__(values)
        self._json_text = json_text

    def __str__(self) -> str:
        return self._json_text

    def __add__(self, other: Any) -> Any:
        return self._json_text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + self._json_text if isinstance(other, str) else NotImplemented


def map_texts(value: Any, change: Change) -> Any:
    """Return the same structure with `change` applied to every text, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        changed = {change(key): map_texts(item, change) for key, item in value.items()}
        return Arguments(changed, change(str(value))) if isinstance(value, Arguments) else changed
    return type(value)(map_texts(item, change) for item in value) if isinstance(value, list) else value
