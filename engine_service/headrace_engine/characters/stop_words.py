"""Stop words, and texts that are read for them as their ids come."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_engine.characters.detokenizer import WHOLE, Cut, Detokenizer, TokenBytes, cut_of_prompt
from headrace_engine.characters.word_finder import Symbol, WordFinder


@dataclass(frozen=True, slots=True)
class WordStop:
    """One of stop_words.

    Attributes:
        index: its index in the list.
        visible: number of its characters that appear in a text without special tokens.
    """

    text: str
    index: int
    visible: int


@dataclass(frozen=True, slots=True)
class StopWords:
    """The stop words of one request.

    Attributes:
        listed: all of them, searched in the text.
        named: those that name special tokens, which the text omits; searched in text and ids together.
    """

    listed: tuple[WordStop, ...]
    named: tuple[WordStop, ...]
    finder: WordFinder
    named_finder: WordFinder | None


def stop_words_of(texts: Sequence[str], special: Mapping[str, int]) -> StopWords:
    """Prepare stop words.

    Args:
        special: ids of the special tokens without text, by name.
    """
    words = tuple(WordStop(word, index, len(word)) for index, word in enumerate(texts))
    marked = dict(_named(words, special))
    finder = WordFinder(marked.values(), silent=frozenset(special.values())) if marked else None
    return StopWords(words, tuple(marked), WordFinder(texts), finder)


def _named(words: tuple[WordStop, ...], special: Mapping[str, int]) -> Iterator[tuple[WordStop, list[Symbol]]]:
    """Yield the words that contain special tokens, each with its characters and the ids of those tokens."""
    names = sorted(filter(None, special), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")
    for word in words:
        symbols = list(_symbols(word.text, pattern, special))
        if len(symbols) < len(word.text):
            visible = sum(isinstance(symbol, str) for symbol in symbols)
            yield WordStop(word.text, word.index, visible), symbols


def _symbols(text: str, pattern: re.Pattern[str], special: Mapping[str, int]) -> Iterator[Symbol]:
    begin = 0
    for match in pattern.finditer(text):
        yield from text[begin : match.start()]
        yield special[match[0]]
        begin = match.end()
    yield from text[begin:]


@dataclass(frozen=True, slots=True)
class Reading:
    """Where a text stands.

    Attributes:
        cut: its incomplete character.
        state, named: states of the two finders.
    """

    cut: Cut = WHOLE
    state: int = 0
    named: int = 0


START = Reading()
"""Of a text behind whole characters."""


class WordReader:
    """Finds the stop words of texts that continue one prompt, and may branch.

    Args:
        skipped: ids without text.
    """

    def __init__(
        self, stops: StopWords, token_bytes: TokenBytes, skipped: Collection[int], prompt: Sequence[int]
    ) -> None:
        self._stops = stops
        self._token_bytes = token_bytes
        self._skipped = skipped
        self.start = Reading(cut_of_prompt(prompt, token_bytes, skipped))

    def read(self, at: Reading, token_id: int) -> tuple[Reading, bool]:
        """Return where a text stands after one more id, and whether that completes a stop word."""
        named_finder = self._stops.named_finder
        if token_id in self._skipped:
            if named_finder is None:
                return at, False
            named = named_finder.step(at.named, token_id)
            return replace(at, named=named), named_finder.found(named) is not None
        decoder = Detokenizer(self._token_bytes, (), at.cut)
        finder, state, named, found = self._stops.finder, at.state, at.named, False
        for character in decoder.push(token_id):
            state = finder.step(state, character)
            found = found or finder.found(state) is not None
            if named_finder is not None:
                named = named_finder.step(named, character)
                found = found or named_finder.found(named) is not None
        return Reading(decoder.cut, state, named), found
