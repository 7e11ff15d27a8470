"""Finds words in a growing list of symbols, and reports which suffix may still become one."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence

Symbol = str | int
"""A character, or an id."""

_IDS = 1 << 31
"""Offset of the codes of ids, above those of characters."""


class WordFinder:
    """An Aho-Corasick automaton: the cost of a step does not depend on the number of words.

    Reading does not change it: a state is a number, 0 before the first symbol. States are numbered breadth-first, and
    the successors of a state by their symbols, so that arrays with 20 bytes per state suffice.

    Args:
        words: none of them empty.
        silent: symbols that `waiting` does not count.

    Attributes:
        waiting: by state, number of trailing symbols that may still become a word.
    """

    def __init__(self, words: Iterable[Sequence[Symbol]], silent: Collection[Symbol] = ()) -> None:
        self._symbols = array("I", [0])  # by state: the symbol that leads to it
        self._first = array("I", [1])  # by state: its first successor; the next state's is the end
        self._found = array("I", [0])  # by state: 1 + the index of its word; 0: no word ends there
        self.waiting = array("I", [0])
        parents = self._build(sorted((array("I", map(_code, word)), index) for index, word in enumerate(words)))
        self._falls = array("I", bytes(4 * len(self._symbols)))
        self._count_waiting(parents, frozenset(map(_code, silent)))
        self._link(parents)

    @property
    def nbytes(self) -> int:
        """Size of the automaton, in bytes."""
        return sum(each.itemsize * len(each) for each in (self._symbols, self._first, self._found, self.waiting)) + (
            self._falls.itemsize * len(self._falls)
        )

    def step(self, state: int, symbol: Symbol) -> int:
        """Return the state after one more symbol."""
        return self._step(state, _code(symbol))

    def found(self, state: int) -> int | None:
        """Return the index of the longest word that ends in a state, the first of equal ones; None: none does."""
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
        """Build the states, level by level; return the parent of each."""
        parents = array("I", [0])
        spans = deque([(0, len(words))])  # by numbered state: the range of words with its prefix
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
        """Number the successors of a state."""
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
        """Set the failure link of each state: the longest proper suffix that is a prefix of a word."""
        for state in range(1, len(parents)):
            parent = parents[state]
            fall = self._step(self._falls[parent], self._symbols[state]) if parent else 0
            self._falls[state] = fall
            self._found[state] = self._found[state] or self._found[fall]
            if self._first[state] == self._first[state + 1]:  # A complete word that is no prefix of a longer one.
                self.waiting[state] = self.waiting[fall]


def _code(symbol: Symbol) -> int:
    return ord(symbol) if isinstance(symbol, str) else symbol + _IDS


class WordCursor:
    """A cursor of one reader of a WordFinder."""

    __slots__ = ("_finder", "_state")

    def __init__(self, finder: WordFinder) -> None:
        self._finder = finder
        self._state = 0

    def take(self, symbol: Symbol) -> int | None:
        """Read one more symbol; return the index of the longest word that ends with it."""
        self._state = self._finder.step(self._state, symbol)
        return self._finder.found(self._state)

    @property
    def waiting(self) -> int:
        """Number of trailing symbols that may still become a word."""
        return self._finder.waiting[self._state]
