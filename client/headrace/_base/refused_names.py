"""Attributes of other systems' classes that are not supported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class RefusedNames:
    """Base of classes with an API of another system: attributes in `refused` raise an error with what to do instead."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Attributes that are not supported, with what to do instead."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise the error for an attribute that is not there."""
            advice = f": {self.refused[name]}" if name in self.refused else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{advice}", name=name, obj=self)
