"""Frames (MessagePack) between an engine and the process that renders a model's chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.chat_types import Chat
from headrace_engine.errors import FieldViolation, InvalidArgument
from headrace_engine.request_types import ConfigWarning

MAX_SECONDS = 5.0
"""Maximum CPU seconds to render a chat or compile the templates; then SIGPROF ends the process."""

MAX_MEMORY = 1 << 30
"""Maximum address space of the rendering process, in bytes."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: the arguments of `ChatTemplate`, and the names of special tokens.

    Attributes:
        with_tools: separate template for chats with tools; None: the same.
        field: path of the field to name in errors about the template.
    """

    source: str
    with_tools: str | None
    variables: Mapping[str, str]
    special_texts: tuple[str, ...]
    field: str


@dataclass(frozen=True, slots=True)
class Order:
    """A chat to render, and the limits of its text."""

    chat: Chat
    max_bytes: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """An InvalidArgument."""

    message: str
    reason: str
    violations: tuple[FieldViolation, ...]

    @classmethod
    def of(cls, error: InvalidArgument) -> Refusal:
        """Convert an error to a frame."""
        return cls(error.message, error.reason, error.violations)

    def error(self) -> InvalidArgument:
        """Convert the frame back to the error."""
        return InvalidArgument(self.message, reason=self.reason, violations=self.violations)


@dataclass(frozen=True, slots=True)
class Answer:
    """The pieces of a rendered text, as returned by `Shield.split`, or the error. Empty after Setup.

    Attributes:
        warnings: contents that the template omits, or reads in another form than sent.
    """

    pieces: tuple[tuple[str, bool], ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()
    refusal: Refusal | None = None
