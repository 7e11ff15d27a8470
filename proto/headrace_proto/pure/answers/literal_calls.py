"""Calls whose arguments are literals of another language than JSON: Python's, or Gemma's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace_proto.pure.answers.json_text import MAX_NAME, is_unicode, loads, quoted
from headrace_proto.pure.answers.named_calls import NAME
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Piece, Steps
from headrace_proto.pure.answers.reader import Reader

_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_SCALAR = re.compile(r"[^\s,:=()\[\]{}\"']+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}


@dataclass
class _Open:
    """A list or an object that was begun.

    Attributes:
        close: what ends it.
        json_close: what ends it in JSON.
        sign: between a name and its value; "": it is a list.
        begun: it has a value.
    """

    close: str
    json_close: str
    sign: str
    begun: bool = False


@dataclass(frozen=True)
class LiteralCalls:
    """NAME, and named values in brackets.

    Attributes:
        open: the mark before the calls; "": they are the whole text.
        close: the mark after them; "": none.
        brackets: those around the named values.
        sign: between a name and its value.
        quotes: the mark around strings; "": those of Python, with its escapes.
        listed: the calls are a list.
    """

    open: str
    close: str
    brackets: str
    sign: str
    quotes: str = ""
    listed: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks."""
        return tuple(filter(None, (self.open, self.close, self.quotes)))

    def read(self, reader: Reader) -> Steps[bool]:
        """Read what follows the mark. Return whether it is a call; if not, what was read is kept."""
        yield from reader.space()
        if self.listed and not (yield from reader.sees("[")):
            return False
        called = False
        while (yield from self._call(reader)):
            called = True
            reader.keep()
            yield from reader.space()
            if not self.listed or not (yield from reader.sees(",")):
                break
            yield from reader.space()
        if called:
            if self.listed:
                yield from reader.sees("]")
            reader.commit()
        return called

    def _call(self, reader: Reader) -> Steps[bool]:
        yield from reader.space()
        name, end = yield from reader.until([self.brackets[0]], MAX_NAME)
        if end < 0 or not NAME.fullmatch(name):
            return False
        reader.commit()
        yield CallBegin(name)
        yield from self._arguments(reader)
        return True

    def _arguments(self, reader: Reader) -> Steps[None]:
        """Give on named values up to the bracket after them, as an object. Nesting costs no more than length."""
        open_parts = [_Open(self.brackets[1], "}", self.sign)]
        yield Arguments("{")
        while open_parts:
            part = open_parts[-1]
            yield from reader.space()
            if (yield from reader.sees(part.close)):
                yield Arguments(part.json_close)
                open_parts.pop()
            elif not (yield from self._next(reader, part)):
                return
            elif (opened := (yield from reader.sees_one(["{", "["]))) >= 0:
                yield Arguments("{["[opened])
                open_parts.append(_Open("}", "}", ":") if opened == 0 else _Open("]", "]", ""))
            elif not (yield from self._scalar(reader)):
                return

    def _next(self, reader: Reader, part: _Open) -> Steps[bool]:
        """Read what stands before a value: a comma, and in an object a key. Return whether it does."""
        between, part.begun = ", " if part.begun else "", True
        if between:
            if not (yield from reader.sees(",")) and not part.sign:
                return False
            yield from reader.space()
        if not part.sign:
            if between:
                yield Arguments(between)
            return True
        key = yield from self._key(reader, part.sign)
        if key is None:
            return False
        yield Arguments(f'{between}"{quoted(key)}": ')
        yield from reader.space()
        return True

    def _key(self, reader: Reader, sign: str) -> Steps[str | None]:
        """Read a key, with quotation marks or without, and what follows it."""
        quote = yield from self._quote(reader)
        key, end = yield from reader.until([quote or sign], MAX_NAME)
        if end < 0 or (not quote and not is_key(key.strip())):
            return None
        if quote:
            yield from reader.space()
            return key if (yield from reader.sees(sign)) else None
        return key.strip()

    def _quote(self, reader: Reader) -> Steps[str]:
        """Read the beginning of a string. Return its mark; "": there is none."""
        marks = [self.quotes] if self.quotes else ['"', "'"]
        found = yield from reader.sees_one(marks)
        return "" if found < 0 else marks[found]

    def _scalar(self, reader: Reader) -> Steps[bool]:
        quote = yield from self._quote(reader)
        if quote:
            return (yield from (self._marked(reader) if self.quotes else _string(reader, quote)))
        return (yield from _scalar(reader))

    def _marked(self, reader: Reader) -> Steps[bool]:
        yield Arguments('"')
        if (yield from reader.upto([self.quotes], _quoted_part)) < 0:
            return False
        yield Arguments('"')
        return True


def is_key(text: str) -> bool:
    """True if a text may be a key without quotation marks."""
    return bool(NAME.fullmatch(text))


def _string(reader: Reader, quote: str) -> Steps[bool]:
    """Give on a string of Python to its end."""
    yield Arguments('"')
    while True:
        found = yield from reader.upto([quote, "\\"], _quoted_part)
        if found < 0:
            return False
        if found == 0:
            yield Arguments('"')
            return True
        one = yield from reader.peek()
        if not one:
            return False
        reader.take(1)
        yield Arguments(quoted((yield from _escape(reader, one))))


def _escape(reader: Reader, one: str) -> Steps[str]:
    """Return what an escape stands for; what is none stands for itself."""
    size = {"x": 2, "u": 4, "U": 8}.get(one)
    if size is None:
        return _ESCAPES.get(one, one if one in "\\'\"" else f"\\{one}")
    digits = ""
    while len(digits) < size and (digit := (yield from reader.peek())) and digit in "0123456789abcdefABCDEF":
        digits += reader.take(1)
    try:
        found = chr(int(digits, 16)) if len(digits) == size else ""
    except (ValueError, OverflowError):
        found = ""
    return found if found and is_unicode(found) else f"\\{one}{digits}"


def _scalar(reader: Reader) -> Steps[bool]:
    """Give on a number, a constant or a bare word."""
    found: list[str] = []
    while (part := _SCALAR.match(reader.text, reader.at)) is not None or reader.at >= len(reader.text):
        if part is not None:
            found.append(reader.take(len(part[0])))
        if reader.at < len(reader.text):
            break
        if not (yield from reader.more()):
            return False  # It may go on.
    text = "".join(found)
    if text:
        yield Arguments(_as_json(text))
    return bool(text)


def _as_json(text: str) -> str:
    text = _CONSTANTS.get(text, text)
    try:
        loads(text)
    except ValueError:
        return f'"{quoted(text)}"'
    return text


def _quoted_part(text: str) -> Piece:
    return Arguments(quoted(text))
