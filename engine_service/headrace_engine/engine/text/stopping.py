"""Incremental detokenization that ends at a stop."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from headrace_engine.characters.detokenizer import WHOLE, Cut, Detokenizer, TokenBytes
from headrace_engine.characters.stop_words import WordStop
from headrace_engine.characters.word_finder import WordCursor
from headrace_engine.engine.text.stops import IdStop, Stops
from headrace_engine.result_types import StopKind, StopMatch


class Decoder(Protocol):
    """Converts the ids of a sequence to text, one by one.

    Attributes:
        stop: the stop that ended it; None: none has so far.
    """

    stop: StopMatch | None

    def push(self, token_id: int) -> str:
        """Return the text that this id completes."""

    def flush(self) -> str:
        """Return the remaining text at the end."""


@dataclass(slots=True)
class EndedDecoder:
    """The decoder of a sequence that has ended; it keeps only the stop that ended it."""

    stop: StopMatch | None

    def push(self, token_id: int) -> str:
        """Return nothing: the sequence has ended."""
        return ""

    def flush(self) -> str:
        """Return nothing."""
        return ""


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of a text: its length in decoded characters, and the text after them."""

    length: int
    tail: str
    stop: StopMatch | None


class StoppingDetokenizer:
    """Holds back text that may still become a stop, and ends with the first complete stop.

    A stop word ends within the text of its last id, so it takes precedence over stop ids, which end with an id. Of
    stops that end at the same position the longest wins, then the first in its list. The result depends on the ids
    alone, not on how they are batched.

    Args:
        token_bytes: returns the bytes of an id.
        skipped: ids without text.
        start: incomplete character at the end of the prompt.
    """

    def __init__(self, stops: Stops, token_bytes: TokenBytes, skipped: Collection[int], start: Cut = WHOLE) -> None:
        self._stops = stops
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = Detokenizer(token_bytes, skipped, start)
        self._words = WordCursor(stops.words.finder)
        self._named = WordCursor(stops.words.named_finder) if stops.words.named_finder else None
        self._ids = WordCursor(stops.id_finder)
        self._held = ""
        self._sent = 0  # Characters of the text before `_held`.
        self._befores: deque[tuple[int, Cut]] = deque(
            maxlen=stops.longest
        )  # By id: text length and incomplete character before it.
        self._left = stops.min_new  # Number of further ids that cannot end it.
        self._over = False
        self.stop: StopMatch | None = None

    def push(self, token_id: int) -> str:
        """Return the text that this id completes, with all held-back text if it ends the sequence."""
        if self._over:
            return ""
        self._befores.append((self._length, self._decoder.cut))
        piece = self._decoder.push(token_id)
        self._held += piece
        ending = self._ending(token_id, piece)
        self._left -= 1
        return self._release(len(self._held) - self._waiting) if ending is None else self._end(ending)

    def flush(self) -> str:
        """Return the held-back text; nothing after a stop."""
        if self._over:
            return ""
        return self._release(len(self._held)) + self._decoder.flush()

    @property
    def _length(self) -> int:
        return self._sent + len(self._held)

    @property
    def _waiting(self) -> int:
        """Number of trailing characters that may still become a stop."""
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
        """Return the first stop that this id completes; all finders advance, even while none may end it yet."""
        word = self._special(token_id) if token_id in self._skipped else self._word(piece)
        index = self._ids.take(token_id)
        if word is not None or index is None or self._left > 0:
            return word
        return self._id_ending(self._stops.ids[index])

    def _word(self, piece: str) -> _Ending | None:
        """Return a stop word that ends within a piece of text."""
        if not self._stops.words.listed:
            return None
        for length, character in enumerate(piece, self._length - len(piece) + 1):
            index = self._words.take(character)
            named = None if self._named is None else self._named.take(character)
            if self._left <= 0 and (index is not None or named is not None):
                stop = self._longest(index, named)
                return self._word_ending(stop, length - stop.visible, "")
        return None

    def _longest(self, index: int | None, named: int | None) -> WordStop:
        found = [] if index is None else [self._stops.words.listed[index]]
        found += [] if named is None else [self._stops.words.named[named]]
        return max(found, key=lambda stop: len(stop.text))

    def _special(self, token_id: int) -> _Ending | None:
        """Return a stop word that ends with a special token without text."""
        if self._named is None:
            return None
        index = self._named.take(token_id)
        if index is None or self._left > 0:
            return None
        stop = self._stops.words.named[index]
        cut = "" if stop.visible else self._decoder.flush()
        return self._word_ending(stop, self._length - stop.visible, cut)

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
        if self._stops.include:  # It is kept like any other text.
            return _Ending(self._length, self._decoder.flush(), None)
        return _Ending(length, Detokenizer(self._token_bytes, (), cut).flush(), None)
