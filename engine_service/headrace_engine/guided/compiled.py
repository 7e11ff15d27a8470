"""Compiled grammars, which the guides of many texts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_engine.guided.library import call_library

if TYPE_CHECKING:
    from llguidance import LLMatcher

GROWTH = 2048
"""Estimated growth of a grammar with each id of a text, in bytes: its automata are built lazily."""

MAX_GROWTH = 32 << 20
"""Estimated growth, in bytes, after which a grammar is recompiled for the next request."""


class Compiled:
    """A compiled grammar. All guides of it share its automata, and extend them.

    Args:
        compiles: compiles another matcher, which shares nothing with this one.
        size: bytes that it takes, as far as that is known.
        seconds: processor time that it takes to compile.

    Attributes:
        sound: no guide has driven the shared automata beyond their limits, which makes them unusable for all.
    """

    def __init__(self, compiles: Callable[[], LLMatcher], size: int = 0, seconds: float = 0.0) -> None:
        self._compiles = compiles
        self._matcher = compiles()
        self._size = size
        self._taken = 0
        self.seconds = seconds
        self.sound = True

    @property
    def size(self) -> int:
        """Current size in bytes: an upper estimate for typical grammars."""
        return self._size + min(self._taken * GROWTH, MAX_GROWTH)

    @property
    def has_outgrown(self) -> bool:
        """True if it has grown so much that it should be recompiled."""
        return self._taken * GROWTH >= MAX_GROWTH

    def begin(self) -> LLMatcher:
        """Return a matcher at the start of a text."""
        return call_library(self._matcher.deep_copy)

    def compile_own(self) -> LLMatcher:
        """Compile a matcher that shares nothing with others, at the start of a text."""
        return self._compiles()

    def count(self, taken: int) -> None:
        """Record that a text has grown by this many ids."""
        self._taken += taken
