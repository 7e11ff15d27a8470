"""What an engine and the process that renders a model's chats say to each other: frames of MessagePack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace_engine.errors import FieldViolation, InvalidArgument
from headrace_engine.request_types import Chat, ConfigWarning

MAX_SECONDS = 5.0
"""Processor time for one chat, or to compile the template; then the system ends the process with SIGPROF."""

MAX_MEMORY = 1 << 30
"""Bytes of address space of the process that renders."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message: the template, as `ChatTemplate` takes it, and the names of special tokens.

    Attributes:
        with_tools: a template for chats that bring tools; None: the same.
        field: path of the field that is to blame for a template that is none.
    """

    source: str
    with_tools: str | None
    variables: Mapping[str, str]
    special_texts: tuple[str, ...]
    field: str


@dataclass(frozen=True, slots=True)
class Order:
    """One chat, and how long its text may become."""

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
        """How an error is told."""
        return cls(error.message, error.reason, error.violations)

    def error(self) -> InvalidArgument:
        """The error that was told."""
        return InvalidArgument(self.message, reason=self.reason, violations=self.violations)


@dataclass(frozen=True, slots=True)
class Answer:
    """The pieces of a rendered text, as `Shield.split` gives them; or why there are none. Empty after Setup.

    Attributes:
        warnings: what the template leaves out, or reads in another form than it was sent in.
    """

    pieces: tuple[tuple[str, bool], ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()
    refusal: Refusal | None = None
