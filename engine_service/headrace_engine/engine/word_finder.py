"""Finds words in a growing list of symbols, and knows what may still become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

Symbol = str | int
"""A character, or an id."""


class WordFinder:
    """The automaton of Aho and Corasick: reading costs the same however many words there are.

    It is not changed by reading: a state is a number, 0 before the first symbol.

    Args:
        words: none of them empty.
        silent: symbols that `waiting` does not count.

    Attributes:
        found: by state, the place of the longest word that ends there, the first of equal ones; None: none does.
        waiting: by state, how many of the last symbols may still become a word.
    """

    def __init__(self, words: Iterable[Sequence[Symbol]], silent: Collection[Symbol] = ()) -> None:
        self._edges: list[dict[Symbol, int]] = [{}]
        self._falls = [0]
        self.found: list[int | None] = [None]
        self.waiting = [0]
        for place, word in enumerate(words):
            self._add(word, place, silent)
        self._link()

    def step(self, state: int, symbol: Symbol) -> int:
        """The state after one more symbol."""
        edges = self._edges
        while (after := edges[state].get(symbol)) is None:
            if not state:
                return 0
            state = self._falls[state]
        return after

    def _add(self, word: Sequence[Symbol], place: int, silent: Collection[Symbol]) -> None:
        state = 0
        for symbol in word:
            after = self._edges[state].get(symbol)
            if after is None:
                after = self._edges[state][symbol] = len(self._edges)
                self._edges.append({})
                self._falls.append(0)
                self.found.append(None)
                self.waiting.append(self.waiting[state] + (symbol not in silent))
            state = after
        if self.found[state] is None:
            self.found[state] = place

    def _link(self) -> None:
        """Let each state know the longest other beginning of a word that it ends with; the shorter ones first."""
        states = deque(self._edges[0].values())
        while states:
            state = states.popleft()
            fall = self._falls[state]
            if self.found[state] is None:
                self.found[state] = self.found[fall]
            if not self._edges[state]:  # A whole word that begins no longer one waits for nothing.
                self.waiting[state] = self.waiting[fall]
            for symbol, after in self._edges[state].items():
                self._falls[after] = self.step(fall, symbol)
                states.append(after)


class Reading:
    """A place in what one finder reads."""

    __slots__ = ("_finder", "_state")

    def __init__(self, finder: WordFinder) -> None:
        self._finder = finder
        self._state = 0

    def take(self, symbol: Symbol) -> int | None:
        """Read one more symbol: the place of the longest word that ends with it."""
        self._state = self._finder.step(self._state, symbol)
        return self._finder.found[self._state]

    @property
    def waiting(self) -> int:
        """How many of the last symbols may still become a word."""
        return self._finder.waiting[self._state]
