"""The beams of a search, and their tokens, which they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_engine.characters.stop_words import START, Reading
from headrace_engine.core.runner import Sampled
from headrace_engine.guided.guide import Guide
from headrace_engine.result_types import FinishReason

if TYPE_CHECKING:
    from headrace_engine.core.scheduling.sequence import Sequence as CoreSequence


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A token of a beam, and those before it, which beams share."""

    before: Link | None
    token: Sampled


@dataclass(slots=True, eq=False)
class Beam:
    """A text that goes on.

    Attributes:
        score: sum of its log-probabilities.
        last: its last token; None: it begins.
        guide: follows its grammar; None: it has none.
        reading: where it stands with regard to stop words.
        parent: the sequence whose ids it continues; None: it is to be computed again.
    """

    score: float = 0.0
    last: Link | None = None
    guide: Guide | None = None
    reading: Reading = START
    parent: CoreSequence | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A text that has ended."""

    score: float
    last: Link
    reason: FinishReason


def tokens_of(last: Link | None) -> list[Sampled]:
    """Return the tokens up to one, in order."""
    return list(_tokens_back(last))[::-1]


def _tokens_back(last: Link | None) -> Iterator[Sampled]:
    """Yield a token, and those before it."""
    while last is not None:
        yield last.token
        last = last.before


def ids_back(last: Link | None) -> Iterator[int]:
    """Yield the ids of a token, and of those before it."""
    return map(id_of, _tokens_back(last))


def id_of(token: Sampled) -> int:
    """Return the id of a beam's token."""
    assert token.token_id is not None, "beams consist of ids"
    return token.token_id
