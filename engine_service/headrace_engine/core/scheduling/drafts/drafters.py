"""Sources of drafted ids."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Protocol

from headrace_engine.config import Speculation
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.speculation.acceptance import Guess
from headrace_engine.core.speculation.ngrams import Ngrams

_LONG = 5
"""Matches of 2 to this power ids and more are about equally likely to go on."""

NO_GUESS = Guess(())


class Drafter(Protocol):
    """Guesses what a sequence generates next. Any guess is safe: ids that turn out otherwise are dropped."""

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """Return the ids that may come next, at most `most`; none if there is no good guess."""


def drafter_for(speculation: Speculation) -> Drafter | None:
    """Return the source that a plan names; None: there is none."""
    match speculation:
        case Speculation.OFF:
            return None
        case Speculation.GRAMMAR:
            return ForcedIds()
        case Speculation.NGRAM | Speculation.DRAFT:
            return FirstOf(ForcedIds(), EarlierOccurrences())


def up_to_end(sequence: Sequence, ids: Iterable[int]) -> list[int]:
    """Return the ids before the first that ends a sequence, which nothing follows."""
    ends = (*sequence.request.eos_ids, *sequence.request.stop_ids)
    return list(takewhile(lambda token_id: token_id not in ends, ids))


class ForcedIds:
    """Ids that a sequence's grammar leaves no choice about, except in how their text is divided into ids."""

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """See Drafter."""
        return NO_GUESS if sequence.guide is None else Guess(sequence.guide.forced(most), "forced")


class EarlierOccurrences:
    """Drafts the ids that followed an earlier occurrence of the latest ids, in the prompt or the generated ids."""

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """See Drafter."""
        if sequence.ngrams is None:
            sequence.ngrams = Ngrams()
        ngrams = sequence.ngrams
        ngrams.follow(sequence.ids)
        ids = ngrams.continuation(sequence.ids, most)
        return Guess(ids, f"ngram{min(ngrams.matched.bit_length(), _LONG)}")


class FirstOf:
    """The guess of the first source that has one."""

    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    def guess(self, sequence: Sequence, most: int) -> Guess:
        """See Drafter."""
        guesses = (drafter.guess(sequence, most) for drafter in self._drafters)
        return next((guess for guess in guesses if guess.ids), NO_GUESS)
