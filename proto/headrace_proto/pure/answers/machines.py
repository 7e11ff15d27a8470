"""Runs readers of answers as text machines, and puts what reads calls behind what reads thoughts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Piece, Steps, Thought
from headrace_proto.pure.answers.reader import Reader, as_text

Run = Callable[[Reader], Steps[None]]
"""Reads an answer to its end."""

Call = Callable[[Reader], Steps[bool]]
"""Reads a call, and returns whether it is one."""


@dataclass(frozen=True)
class ThoughtStyle:
    """How a model marks what it thinks before it answers.

    Attributes:
        open: the mark before a thought.
        close: the mark after it.
    """

    open: str
    close: str


class TextMachine:
    """A `Machine`. White space alone before, between and after calls, or as a thought, is left out.

    Args:
        run: reads the answer.
    """

    def __init__(self, run: Run) -> None:
        self._reader = Reader()
        self._steps = run(self._reader)
        self._blank: list[str] | None = []  # White space that is given on once text follows; None: text has begun.
        self._called = False
        self._thought: list[str] | None = []  # White space at the beginning of a thought; None: it has begun.

    def feed(self, text: str) -> list[Piece]:
        """Take more text; return what is certain now."""
        self._reader.add(text)
        return self._advance()

    def end(self) -> list[Piece]:
        """Return what is left at the end of the text."""
        self._reader.over = True
        found = self._advance()
        blank = "".join(self._blank or [])
        return found if self._called or not blank else [*found, blank]

    def _advance(self) -> list[Piece]:
        found: list[Piece] = []
        for piece in self._steps:
            if piece is None:
                break
            self._add(piece, found)
        return found

    def _add(self, piece: Piece, found: list[Piece]) -> None:
        if isinstance(piece, CallBegin):
            self._blank, self._called = [], True
            found.append(piece)
        elif isinstance(piece, Arguments):
            found.append(piece)
        elif isinstance(piece, Thought):
            text, self._thought = _held(piece.text, self._thought)
            found += [Thought(text)] if text else []
        else:
            text, self._blank = _held(piece, self._blank)
            found += [text] if text else []


def _held(text: str, blank: list[str] | None) -> tuple[str, list[str] | None]:
    """Return what can be given on of a text, and the white space that is still held before it."""
    if blank is None:
        return text, None
    blank.append(text)
    return ("", blank) if not text.strip() else ("".join(blank), None)


def after_thoughts(style: ThoughtStyle, opened: bool, rest: Run) -> Run:
    """Return what reads a thought at the beginning, and then the rest.

    Args:
        style: how it is marked.
        opened: the prompt ends with its first mark.
        rest: reads the rest.
    """

    def run(reader: Reader) -> Steps[None]:
        blank = yield from reader.space()
        mark = style.open.rstrip()
        begun = yield from reader.sees(mark)
        if begun and mark != style.open:
            yield from reader.sees(style.open[len(mark) :])
        if not begun and not opened:
            yield blank
            yield from rest(reader)
            return
        if not begun:
            yield Thought(blank)
        if (yield from reader.upto([style.close], Thought)) < 0:
            return
        while (yield from reader.sees("\n")):
            pass
        yield from rest(reader)

    return run


def with_thoughts(style: ThoughtStyle, opened: bool, rest: Run, close: str) -> Run:
    """Return what reads a thought at the beginning as text, in which there are no calls, and then the rest.

    Args:
        style: how it is marked.
        opened: the prompt ends with its first mark.
        rest: reads the rest.
        close: what the text has of the mark after it.
    """

    def run(reader: Reader) -> Steps[None]:
        yield (yield from reader.space())
        mark = style.open.rstrip()
        begun = yield from reader.sees(mark)
        if begun:
            yield mark
        if begun or opened:
            if (yield from reader.upto([style.close], as_text)) < 0:
                return
            yield close
        yield from rest(reader)

    return run


def among_text(begin: str, close: str, sections: Sequence[tuple[str, str]], dropped: Sequence[str], call: Call) -> Run:
    """Return what reads calls among text.

    Args:
        begin: the mark before a call.
        close: the mark after it; "": none.
        sections: marks before and after all calls, left out where there are calls between them.
        dropped: marks around text, left out.
        call: reads what follows the mark.
    """
    opens, closes = [one for one, _ in sections], [one for _, one in sections]
    marks = [begin, *opens, *closes, *dropped]
    ends = [close.strip()] if close else closes

    def run(reader: Reader) -> Steps[None]:
        called = False
        while (found := (yield from reader.upto(marks, as_text))) >= 0:
            if found > len(opens):
                if not called and marks[found] in closes:
                    yield marks[found]
                continue
            reader.keep(marks[found])
            if found:
                called = False
                yield from reader.space()
            if (found and not (yield from reader.sees(begin))) or not (yield from call(reader)):
                yield reader.kept()
                continue
            called = True
            if left := reader.kept():
                yield left
                continue
            blank = yield from reader.space()
            if (yield from reader.sees_one(ends)) < 0:
                yield blank

    return run


def calls_or_text(begins: Sequence[str], calls: Run) -> Run:
    """Return what reads calls where the text begins with a mark of theirs, or else all of it as text.

    Args:
        begins: the marks.
        calls: reads the calls, with their marks.
    """

    def run(reader: Reader) -> Steps[None]:
        yield (yield from reader.space())
        found = yield from reader.sees_one(begins)
        if found >= 0:
            reader.unread(begins[found])
        yield from calls(reader) if found >= 0 else reader.rest(as_text)

    return run


def whole_text(begin: str, around: Sequence[tuple[str, str]], call: Call) -> Run:
    """Return what reads calls that begin with the text, or else all of it as text.

    Args:
        begin: the first character of calls.
        around: pairs of marks that may stand before and after them; "": none after them.
        call: reads them.
    """
    opens = [one for one, _ in around]

    def run(reader: Reader) -> Steps[None]:
        reader.keep()
        yield from reader.space()
        opened = yield from reader.sees_one(opens)
        if opened >= 0:
            yield from reader.space()
        called = (yield from reader.peek()) == begin and (yield from call(reader))
        if left := reader.kept():
            yield left
        elif called:
            blank, close = (yield from reader.space()), around[opened][1] if opened >= 0 else ""
            if not close or not (yield from reader.sees(close)):
                yield blank
        yield from reader.rest(as_text)

    return run


def all_text(reader: Reader) -> Steps[None]:
    """Read an answer without calls."""
    yield from reader.rest(as_text)
