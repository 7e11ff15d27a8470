"""Pieces of an answer: text, thoughts, and parts of calls."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Thought:
    """A part of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """A call of a tool begins. Its arguments follow, up to the next piece of another kind.

    Attributes:
        name: of the tool.
        id: of the call, where the model gives one.
    """

    name: str
    id: str | None = None


@dataclass(frozen=True)
class Arguments:
    """A part of a call's arguments: all together are one JSON object, as far as the model wrote one."""

    text: str


Piece = str | Thought | CallBegin | Arguments

Steps = Generator["Piece | None", None, T]
"""Reads text: yields pieces as soon as they are certain, and None where it needs more text."""


class Machine(Protocol):
    """Parts an answer. Whatever the pieces in which the text comes, joined it finds the same."""

    def feed(self, text: str) -> list[Piece]:
        """Take more text; return what is certain now."""

    def end(self) -> list[Piece]:
        """Return what is left at the end of the text."""
