"""Text machines that part calls of tools from text. What turns out to be no call is text: nothing is lost.

A machine takes text as it comes. It gives text on at once, but for what may be the beginning of a call, and a call once
it is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace_gateway.http.tools.calls import Call, call_in, calls_in

MAX_CALL = 256 << 10
"""Maximum characters of a call; a longer one is text."""

MAX_BLANK = 4096
"""Maximum characters of white space that are held back before a call or thought; more is text."""


@dataclass(frozen=True)
class Thought:
    """A part of what the model thinks before it answers."""

    text: str


Piece = str | Call | Thought


class Machine(Protocol):
    """Parts calls from text."""

    def feed(self, text: str) -> list[Piece]:
        """Take more text; return what is certain now."""

    def end(self) -> list[Piece]:
        """Return what is left at the end of the text."""


class Hermes:
    """Calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, among text."""

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._searched = 0
        self._inside = self._called = False
        self._blank = True  # Nothing but white space since the beginning, or since a call.

    def feed(self, text: str) -> list[Piece]:
        """Take more text."""
        self._held += text
        found: list[Piece] = []
        while (more := self._step()) is not None:
            found += more
        return found

    def end(self) -> list[Piece]:
        """Return what is left: a call that was not closed, or text."""
        held, self._held = self._held, ""
        if not self._inside:
            return [held] if held and not (self._called and self._blank and not held.strip()) else []
        call = call_in(held)
        return [self._OPEN + held] if call is None else [call]

    def _step(self) -> list[Piece] | None:
        """Take one step; None: more text is needed."""
        mark = self._CLOSE if self._inside else self._OPEN
        at = self._held.find(mark, max(0, self._searched - len(mark)))
        if at < 0:
            self._searched = len(self._held)
            return self._give_up() if self._inside else self._text_before(mark)
        before, self._held, self._searched = self._held[:at], self._held[at + len(mark) :], 0
        self._inside = not self._inside
        if self._inside:
            return [before] if before.strip() else []
        call = call_in(before)
        self._blank, self._called = call is not None, self._called or call is not None
        return [f"{self._OPEN}{before}{self._CLOSE}"] if call is None else [call]

    def _text_before(self, mark: str) -> list[Piece] | None:
        """Give on text that cannot be the beginning of a mark."""
        keep = _overlap(self._held, mark)
        sure = self._held[: len(self._held) - keep]
        if not sure or (self._blank and _may_precede(sure)):
            return None
        self._blank = False
        self._held, self._searched = self._held[len(sure) :], 0
        return [sure]

    def _give_up(self) -> list[Piece] | None:
        if len(self._held) <= MAX_CALL:
            return None
        held, self._held, self._searched, self._inside = self._held, "", 0, False
        return [self._OPEN + held]


class WholeText:
    """Calls that take the rest of the text from a mark on, or all of it.

    Args:
        mark: with which they begin; "": a text that begins with a brace may be calls.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._held: list[str] = []
        self._start = ""
        self._calling: bool | None = None

    def feed(self, text: str) -> list[Piece]:
        """Take more text."""
        if self._calling:
            self._held.append(text)
            return []
        if self._mark:
            return self._until_mark(text)
        if self._calling is None and (begun := (self._start + text).lstrip()):
            self._calling = begun.startswith("{")
            if self._calling:
                self._held = [self._start + text]
                return []
            text, self._start = self._start + text, ""
        elif self._calling is None and _may_precede(self._start + text):
            self._start += text
            return []
        elif self._calling is None:
            self._calling, text, self._start = False, self._start + text, ""
        return [text] if text else []

    def end(self) -> list[Piece]:
        """Return the calls, or the text that turns out to be none."""
        if not self._calling:
            return [self._start] if self._start else []
        text = "".join(self._held)
        calls = calls_in(text) if len(text) <= MAX_CALL else []
        return list(calls) or [self._mark + text]

    def _until_mark(self, text: str) -> list[Piece]:
        held = self._start + text
        before, mark, after = held.partition(self._mark)
        if mark:
            self._calling, self._held, self._start = True, [after], ""
            return [before] if before.strip() else []
        keep = _overlap(held, self._mark)
        self._start = held[len(held) - keep :]
        sure = held[: len(held) - keep]
        return [sure] if sure else []


class Thinking:
    """Parts what stands between `<think>` and `</think>`, at the beginning of a text, from the rest.

    Args:
        opened: the prompt ends with `<think>` already.
        rest: parts the rest; None: it is text.
    """

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self, opened: bool, rest: Machine | None) -> None:
        self._rest = rest
        self._held = ""
        self._inside: bool | None = True if opened else None  # None: it is not known yet.
        self._first = True

    def feed(self, text: str) -> list[Piece]:
        """Take more text."""
        self._held += text
        found: list[Piece] = []
        if self._inside is None:
            begun = self._held.lstrip()
            blank = self._held[: len(self._held) - len(begun)]
            if len(begun) < len(self._OPEN) and self._OPEN.startswith(begun) and _may_precede(blank):
                return []
            self._inside = begun.startswith(self._OPEN)
            self._held = begun[len(self._OPEN) :] if self._inside else self._held
            self._first = self._inside
        if self._inside:
            before, mark, after = self._held.partition(self._CLOSE)
            if not mark:
                return self._thought(len(self._held) - _overlap(self._held, self._CLOSE))
            found, self._inside = self._thought(len(before)), False
            self._held = after.lstrip("\n")
        elif self._first:
            self._held = self._held.lstrip("\n")
        self._first = self._first and not self._held
        held, self._held = self._held, ""
        return [*found, *self._answer(held)]

    def end(self) -> list[Piece]:
        """Return what is left."""
        held, self._held = self._held, ""
        if self._inside:
            return [Thought(held)] if held else []
        return [*self._answer(held), *(() if self._rest is None else self._rest.end())]

    def _thought(self, size: int) -> list[Piece]:
        """Give on so many characters of a thought."""
        sure, self._held = self._held[:size], self._held[size:]
        return [Thought(sure)] if sure else []

    def _answer(self, text: str) -> list[Piece]:
        if not text:
            return []
        return [text] if self._rest is None else self._rest.feed(text)


def _may_precede(text: str) -> bool:
    """True if a text is white space that may still stand before a call or thought."""
    return len(text) <= MAX_BLANK and not text.strip()


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may begin a mark."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
