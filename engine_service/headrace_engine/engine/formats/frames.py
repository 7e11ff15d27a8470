"""Frames between an engine and the process that checks response formats."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.engine.chat.frames import Refusal
from headrace_engine.request_parts import ResponseFormat

MAX_SECONDS = 1.0
"""Maximum CPU seconds to check a format; then SIGPROF ends the process."""

MAX_MEMORY = 1 << 30
"""Maximum address space of the process, in bytes."""


@dataclass(frozen=True, slots=True)
class Words:
    """The first message: the model's vocabulary.

    Attributes:
        pieces: the bytes of each id.
        size: number of ids that the model has logits for.
    """

    pieces: tuple[bytes, ...]
    special_ids: frozenset[int]
    size: int


@dataclass(frozen=True, slots=True)
class Order:
    """A format to check."""

    wanted: ResponseFormat


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for a format: a grammar with the findings of `guided.check`, or the error.

    Empty in reply to the first message.
    """

    grammar: str = ""
    warnings: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0.0
    refusal: Refusal | None = None
