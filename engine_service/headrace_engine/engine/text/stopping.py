"""Text of a growing list of ids that ends at a stop."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from headrace_engine.engine.text.detokenizer import WHOLE, Cut, Detokenizer, TokenBytes
from headrace_engine.engine.text.stops import IdStop, Stops, WordStop
from headrace_engine.engine.text.word_finder import Reading
from headrace_engine.result_types import StopKind, StopMatch


class Decoder(Protocol):
    """Makes the text of a sequence, id by id.

    Attributes:
        stop: what ended it; None: no stop did, so far.
    """

    stop: StopMatch | None

    def push(self, token_id: int) -> str:
        """The text that this id completes."""

    def flush(self) -> str:
        """The text of what still waits, at the end."""


@dataclass(slots=True)
class Spent:
    """The decoder of a sequence that has ended. All that it still knows is which stop ended it."""

    stop: StopMatch | None

    def push(self, token_id: int) -> str:
        """Nothing comes after the end."""
        return ""

    def flush(self) -> str:
        """Nothing waits."""
        return ""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a text ends: with so many characters of what was decoded, and then this."""

    length: int
    tail: str
    stop: StopMatch | None


class StoppingDetokenizer:
    """Keeps text back while it may still become a stop, and ends with the first stop that is complete.

    A stop word ends within the text of its last id, and comes before stop ids, which end with an id. Of stops that end
    at the same place the longest counts, then the order of the lists. Everything depends on the ids alone.

    Args:
        token_bytes: the bytes of an id.
        skipped: ids that leave no text.
        start: what the prompt leaves of a character.
    """

    def __init__(self, stops: Stops, token_bytes: TokenBytes, skipped: Collection[int], start: Cut = WHOLE) -> None:
        self._stops = stops
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = Detokenizer(token_bytes, skipped, start)
        self._words = Reading(stops.word_finder)
        self._named = Reading(stops.named_finder) if stops.named_finder else None
        self._ids = Reading(stops.id_finder)
        self._held = ""
        self._sent = 0  # Characters of the text before `_held`.
        self._befores: deque[tuple[int, Cut]] = deque(maxlen=stops.longest)  # Length, and bytes that wait, by id.
        self._left = stops.min_new  # Ids to come that cannot end it.
        self._over = False
        self.stop: StopMatch | None = None

    def push(self, token_id: int) -> str:
        """The text that this id completes; all that was kept back, where it ends the text."""
        if self._over:
            return ""
        self._befores.append((self._length, self._decoder.cut))
        piece = self._decoder.push(token_id)
        self._held += piece
        ending = self._ending(token_id, piece)
        self._left -= 1
        return self._release(len(self._held) - self._waiting) if ending is None else self._end(ending)

    def flush(self) -> str:
        """The text of what still waits; nothing after a stop."""
        if self._over:
            return ""
        return self._release(len(self._held)) + self._decoder.flush()

    @property
    def _length(self) -> int:
        return self._sent + len(self._held)

    @property
    def _waiting(self) -> int:
        """How many of the last characters may still become a stop."""
        ids = self._ids.waiting
        waiting = max(self._words.waiting, self._length - self._befores[-ids][0] if ids else 0)
        return waiting if self._named is None else max(waiting, self._named.waiting)

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        self._sent += count
        return text

    def _end(self, ending: _Ending) -> str:
        self._over, self.stop = True, ending.stop
        return self._release(ending.length - self._sent) + ending.tail

    def _ending(self, token_id: int, piece: str) -> _Ending | None:
        """The first stop that this id completes; all readings go on, also where it may not end yet."""
        word = self._special(token_id) if token_id in self._skipped else self._word(piece)
        place = self._ids.take(token_id)
        if word is not None or place is None or self._left > 0:
            return word
        return self._id_ending(self._stops.ids[place])

    def _word(self, piece: str) -> _Ending | None:
        """A stop word that ends within a piece of text."""
        if not self._stops.words:
            return None
        for length, character in enumerate(piece, self._length - len(piece) + 1):
            place = self._words.take(character)
            beside = None if self._named is None else self._named.take(character)
            if self._left <= 0 and (place is not None or beside is not None):
                stop = self._longest(place, beside)
                return self._word_ending(stop, length - stop.shown, "")
        return None

    def _longest(self, place: int | None, beside: int | None) -> WordStop:
        found = [] if place is None else [self._stops.words[place]]
        found += [] if beside is None else [self._stops.named[beside]]
        return max(found, key=lambda stop: len(stop.text))

    def _special(self, token_id: int) -> _Ending | None:
        """A stop word that ends with a special token which leaves no text."""
        if self._named is None:
            return None
        place = self._named.take(token_id)
        if place is None or self._left > 0:
            return None
        stop = self._stops.named[place]
        cut = "" if stop.shown else self._decoder.flush()
        return self._word_ending(stop, self._length - stop.shown, cut)

    def _word_ending(self, stop: WordStop, length: int, cut: str) -> _Ending:
        match = StopMatch(StopKind.STOP_WORDS, stop.index, stop.text)
        return _Ending(length, cut + stop.text if self._stops.include else cut, match)

    def _id_ending(self, stop: IdStop) -> _Ending:
        length, cut = self._befores[-len(stop.ids)]
        if stop.kind is None:
            return self._eos_ending(length, cut)
        before = Detokenizer(self._token_bytes, (), cut)
        tail = before.decode(stop.ids) if self._stops.include else before.flush()
        text = Detokenizer(self._token_bytes, ()).decode(stop.ids)
        return _Ending(length, tail, StopMatch(stop.kind, stop.index, text))

    def _eos_ending(self, length: int, cut: Cut) -> _Ending:
        if self._stops.include:  # It is text like any other.
            return _Ending(self._length, self._decoder.flush(), None)
        return _Ending(length, Detokenizer(self._token_bytes, (), cut).flush(), None)
