"""Finds words in a growing list of symbols, and knows what may still become one."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence

Symbol = str | int
"""A character, or an id."""

_IDS = 1 << 31
"""Where the numbers of ids begin, behind those of characters."""


class WordFinder:
    """The automaton of Aho and Corasick: reading costs the same however many words there are.

    It is not changed by reading: a state is a number, 0 before the first symbol. States are numbered by breadth, and
    those that follow one state by their symbols, so that arrays of 20 bytes a state hold it all.

    Args:
        words: none of them empty.
        silent: symbols that `waiting` does not count.

    Attributes:
        waiting: by state, how many of the last symbols may still become a word.
    """

    def __init__(self, words: Iterable[Sequence[Symbol]], silent: Collection[Symbol] = ()) -> None:
        self._symbols = array("I", [0])  # by state, the symbol that leads there
        self._first = array("I", [1])  # by state, the first of those that follow it; they end with the next
        self._found = array("I", [0])  # by state, the place of its word and 1; 0: none ends there
        self.waiting = array("I", [0])
        parents = self._build(sorted((array("I", map(_code, word)), place) for place, word in enumerate(words)))
        self._falls = array("I", bytes(4 * len(self._symbols)))
        self._count_waiting(parents, frozenset(map(_code, silent)))
        self._link(parents)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(each.itemsize * len(each) for each in (self._symbols, self._first, self._found, self.waiting)) + (
            self._falls.itemsize * len(self._falls)
        )

    def step(self, state: int, symbol: Symbol) -> int:
        """The state after one more symbol."""
        return self._step(state, _code(symbol))

    def found(self, state: int) -> int | None:
        """The place of the longest word that ends in a state, the first of equal ones; None: none does."""
        return self._found[state] - 1 if self._found[state] else None

    def _step(self, state: int, code: int) -> int:
        symbols, first = self._symbols, self._first
        while True:
            end = first[state + 1]
            after = bisect_left(symbols, code, first[state], end)
            if after < end and symbols[after] == code:
                return after
            if not state:
                return 0
            state = self._falls[state]

    def _build(self, words: list[tuple[array[int], int]]) -> array[int]:
        """Make the states, level by level; returns the state before each."""
        parents = array("I", [0])
        spans = deque([(0, len(words))])  # of each state that has been numbered: the words that begin with it
        state = depth = 0
        level_end = 1
        while spans:
            if state == level_end:
                depth, level_end = depth + 1, len(self._symbols)
            begin, end = spans.popleft()
            while begin < end and len(words[begin][0]) == depth:
                self._found[state] = self._found[state] or words[begin][1] + 1
                begin += 1
            self._first[state] = len(self._symbols)
            self._follow(words, begin, end, depth, state, parents, spans)
            state += 1
        self._first.append(len(self._symbols))
        return parents

    def _follow(
        self,
        words: list[tuple[array[int], int]],
        begin: int,
        end: int,
        depth: int,
        state: int,
        parents: array[int],
        spans: deque[tuple[int, int]],
    ) -> None:
        """Number the states that follow one."""
        while begin < end:
            code, start = words[begin][0][depth], begin
            while begin < end and words[begin][0][depth] == code:
                begin += 1
            spans.append((start, begin))
            parents.append(state)
            for column, value in ((self._symbols, code), (self._first, 0), (self._found, 0), (self.waiting, 0)):
                column.append(value)

    def _count_waiting(self, parents: array[int], silent: Collection[int]) -> None:
        for state in range(1, len(parents)):
            self.waiting[state] = self.waiting[parents[state]] + (self._symbols[state] not in silent)

    def _link(self, parents: array[int]) -> None:
        """Let each state know the longest other beginning of a word that it ends with; the shorter ones first."""
        for state in range(1, len(parents)):
            parent = parents[state]
            fall = self._step(self._falls[parent], self._symbols[state]) if parent else 0
            self._falls[state] = fall
            self._found[state] = self._found[state] or self._found[fall]
            if self._first[state] == self._first[state + 1]:  # A word that begins no longer one waits for nothing.
                self.waiting[state] = self.waiting[fall]


def _code(symbol: Symbol) -> int:
    return ord(symbol) if isinstance(symbol, str) else symbol + _IDS


class Reading:
    """A place in what one finder reads."""

    __slots__ = ("_finder", "_state")

    def __init__(self, finder: WordFinder) -> None:
        self._finder = finder
        self._state = 0

    def take(self, symbol: Symbol) -> int | None:
        """Read one more symbol: the place of the longest word that ends with it."""
        self._state = self._finder.step(self._state, symbol)
        return self._finder.found(self._state)

    @property
    def waiting(self) -> int:
        """How many of the last symbols may still become a word."""
        return self._finder.waiting[self._state]
