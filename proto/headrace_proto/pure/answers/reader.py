"""Reads text that comes in pieces, by generators which wait for more of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from headrace_proto.pure.answers.pieces import Piece, Steps

_BLANK = re.compile(r"\s+")


class Reader:
    """The text that is not read yet, and, while it may turn out to be no call, what was read of that.

    Attributes:
        text: what is there.
        at: where the unread part begins.
        over: no more text comes.
        trusts: marks within strings of JSON are parts of these. Once such a string did not end, they are not.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.over = False
        self.trusts = True
        self._kept: list[str] | None = None

    def add(self, text: str) -> None:
        """Take more text."""
        self.text = self.text[self.at :] + text
        self.at = 0

    def take(self, size: int) -> str:
        """Read so many characters."""
        taken = self.text[self.at : self.at + size]
        self.at += len(taken)
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def keep(self, before: str = "") -> None:
        """Keep what is read from now on, after some text that was read already."""
        self._kept = [before]

    def commit(self) -> None:
        """Forget what was kept: it is a call."""
        self._kept = None

    def kept(self) -> str:
        """Return what was kept, for the last time: it is text."""
        kept, self._kept = self._kept or [], None
        return "".join(kept)

    def more(self) -> Steps[bool]:
        """Wait for more text. False: there is none."""
        if self.over:
            return False
        yield None
        return True

    def peek(self) -> Steps[str]:
        """Return the next character, unread; "" at the end."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def space(self) -> Steps[str]:
        """Read white space."""
        found: list[str] = []
        while True:
            blank = _BLANK.match(self.text, self.at)
            if blank is not None:
                found.append(self.take(len(blank[0])))
            if self.at < len(self.text) or not (yield from self.more()):
                return "".join(found)

    def sees(self, mark: str) -> Steps[bool]:
        """Read a mark, if it follows."""
        while not self.text.startswith(mark, self.at):
            if not mark.startswith(self.text[self.at : self.at + len(mark)]) or not (yield from self.more()):
                return False
        self.take(len(mark))
        return True

    def sees_one(self, marks: Sequence[str]) -> Steps[int]:
        """Read the first of some marks that follows. Return its number, -1 for none."""
        for number, mark in enumerate(marks):
            if (yield from self.sees(mark)):
                return number
        return -1

    def until(self, marks: Sequence[str], limit: int) -> Steps[tuple[str, int]]:
        """Read up to one of some marks, and that. Return the text before it, and the mark's number.

        Number -1: it does not come within so many characters; then nothing is read.
        """
        pattern = _any_of(tuple(marks))
        while True:
            found = pattern.search(self.text, self.at, self.at + limit + max(map(len, marks)))
            if found is not None and found.start() - self.at <= limit:
                before = self.take(found.start() - self.at)
                self.take(len(found[0]))
                return before, marks.index(found[0])
            if len(self.text) - self.at > limit + max(map(len, marks)) or not (yield from self.more()):
                return "", -1

    def upto(self, marks: Sequence[str], wrap: Callable[[str], Piece]) -> Steps[int]:
        """Give on the text up to one of some marks, and read that. Return its number; -1: the text ended before."""
        pattern = _any_of(tuple(marks))
        while True:
            found = pattern.search(self.text, self.at)
            end = len(self.text) if found is None else found.start()
            if found is None and not self.over:
                end -= max(overlap(self.text, self.at, mark) for mark in marks)
            if end > self.at:
                yield wrap(self.take(end - self.at))
            if found is not None:
                self.take(len(found[0]))
                return marks.index(found[0])
            if not (yield from self.more()):
                return -1

    def held_upto(self, marks: Sequence[str]) -> Steps[tuple[str, int]]:
        """Read up to one of some marks, and that. Return the text before it, and its number; -1: none came."""
        found: list[str] = []
        steps = self.upto(marks, as_text)
        while True:
            try:
                piece = next(steps)
            except StopIteration as stop:
                return "".join(found), stop.value
            if isinstance(piece, str):
                found.append(piece)
            else:
                yield None

    def unread(self, text: str) -> None:
        """Put a text back that was read last."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def rest(self, wrap: Callable[[str], Piece]) -> Steps[None]:
        """Give on all that comes."""
        while True:
            if self.at < len(self.text):
                yield wrap(self.take(len(self.text) - self.at))
            if not (yield from self.more()):
                return


def overlap(text: str, begin: int, mark: str) -> int:
    """Return how many characters at the end of a text, from a position on, may begin a mark."""
    at = max(begin, len(text) - len(mark) + 1)
    while (at := text.find(mark[0], at)) >= 0:
        if mark.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0


def as_text(text: str) -> Piece:
    """Return a text as a piece."""
    return text


@lru_cache(256)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
