"""Finds where the latest ids of a sequence occurred before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_SIZES = 4, 2
"""Numbers of ids that must have occurred before, tried in this order."""

_WINDOW = 1 << 15
"""Number of latest ids that are searched."""

_UNALIGNED = 8
"""Maximum number of matches that are passed over because they begin inside an id."""

_LONGEST_REST = 8
"""Maximum number of ids after a search in vain until the next: it may take as long as a small part of a step."""

_WIDTH = array("i").itemsize


class Ngrams:
    """Follows the ids of one sequence. While they go on as they did before, nothing is searched; where searches are in
    vain, there are fewer of them.

    Attributes:
        matched: number of latest ids known to have occurred before the continuation found last; 0: there is none.
    """

    def __init__(self) -> None:
        self.matched = 0
        self._bytes = bytearray()
        self._known = 0
        self._next: int | None = None
        self._in_vain = 0
        self._rest = 0

    def follow(self, ids: Sequence[int]) -> None:
        """Take the sequence's ids, of which only the last ones are new."""
        for index in range(self._known, len(ids)):
            self._rest = max(0, self._rest - 1)
            if self._next is not None and ids[self._next] == ids[index]:
                self._next, self.matched, self._in_vain = self._next + 1, self.matched + 1, 0
            elif self._next is not None:
                self._next, self.matched = None, 0
                self._note_vain()
        self._bytes += array("i", ids[self._known :]).tobytes()
        self._known = len(ids)

    def continuation(self, ids: Sequence[int], most: int) -> list[int]:
        """Return the `most` ids that followed the last occurrence of the latest ids before; none if they are new."""
        if self._next is None and not self._rest:
            self._next = self._find()
            if self._next is None:
                self._note_vain()
        if self._next is None:
            return []
        found = list(ids[self._next : self._next + most])
        while len(found) < most:  # It runs into the latest ids themselves, so they repeat.
            found.append(found[self._next - len(ids) + len(found)])
        return found

    def _note_vain(self) -> None:
        """Put off the next search, the longer the more there were in vain: the first one by no id."""
        self._rest = min(self._in_vain, _LONGEST_REST)
        self._in_vain += 1

    def _find(self) -> int | None:
        """Return the index of the id after the last occurrence of the latest ids."""
        begin = max(0, self._known - _WINDOW) * _WIDTH
        for size in _SIZES:
            wanted = self._bytes[-size * _WIDTH :]
            end = len(self._bytes) - _WIDTH
            for _ in range(_UNALIGNED):
                at = self._bytes.rfind(wanted, begin, end)
                if at < 0:
                    break
                if at % _WIDTH == 0:
                    self.matched = size
                    return at // _WIDTH + size
                end = at + len(wanted) - 1
        return None
