"""What an engine and the process that checks response formats say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.engine.chat.frames import Refusal
from headrace_engine.request_parts import ResponseFormat

MAX_SECONDS = 1.0
"""Processor time to check one format; then the system ends the process with SIGPROF."""

MAX_MEMORY = 1 << 30
"""Bytes of address space of the process."""


@dataclass(frozen=True, slots=True)
class Words:
    """The first message: the model's ids.

    Attributes:
        pieces: the bytes of each id.
        size: ids that the model has logits for.
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
    """What became of it: a grammar, with what `guided.check` found out about it, or why there is none.

    After the first message it is empty.
    """

    grammar: str = ""
    warnings: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0.0
    refusal: Refusal | None = None
