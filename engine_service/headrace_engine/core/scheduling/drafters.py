"""Sources of drafted ids."""

from __future__ import annotations

from typing import Protocol

from headrace_engine.config import Speculation
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.speculation.ngrams import Ngrams


class Drafter(Protocol):
    """Guesses what a sequence generates next. Any guess is safe: ids that turn out otherwise are dropped."""

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        """Return the ids that may come next, at most `most`; none if there is no good guess."""


def drafter_for(speculation: Speculation) -> Drafter | None:
    """Return the source that a plan names; None: there is none."""
    match speculation:
        case Speculation.OFF:
            return None
        case Speculation.GRAMMAR:
            return ForcedIds()
        case Speculation.NGRAM:
            return FirstOf(ForcedIds(), EarlierOccurrences())


class ForcedIds:
    """Ids that a sequence's grammar leaves no choice about, except in how their text is divided into ids."""

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        """See Drafter."""
        return [] if sequence.guide is None else sequence.guide.forced(most)


class EarlierOccurrences:
    """What followed the latest ids where they occurred before, in the prompt or in what was generated."""

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        """See Drafter."""
        if sequence.ngrams is None:
            sequence.ngrams = Ngrams()
        sequence.ngrams.follow(sequence.ids)
        return sequence.ngrams.continuation(sequence.ids, most)


class FirstOf:
    """The ids of the first source that has any."""

    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        """See Drafter."""
        guesses = (drafter.draft(sequence, most) for drafter in self._drafters)
        return next((ids for ids in guesses if ids), [])
