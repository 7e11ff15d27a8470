"""JSON as models write it, read as it comes."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from headrace_proto.pure.answers.pieces import Arguments, Steps
from headrace_proto.pure.answers.reader import Reader

MAX_NAME = 256
"""Maximum characters of a name, an id or a key."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(r'[^"{}\[\]]+')
_QUOTED = re.compile(r'[^"\\]+')
_SCALAR = re.compile(r"[^\s,;{}\[\]\"]+")
_CLOSED_BY = {"{": "}", "[": "]"}


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text:.64} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_int=float)
"""JSON bounds no numbers, where Python reads integers of up to 4,300 digits."""


class TooDeep(ValueError):
    """A text is nested deeper than Python reads JSON: some 1,000 levels."""


def loads(text: str) -> Any:
    """Return the value of a text; numbers as floats, infinite beyond their range.

    Raises:
        TooDeep: it is nested deeper than Python reads.
        ValueError: it is no JSON; the words NaN and Infinity are none.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise TooDeep from error


def quoted(text: str) -> str:
    """Return a text as a string of JSON, without its quotation marks."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def object_in(text: str) -> str | None:
    """Return the JSON object that a text is, or that a string of JSON has within; None if it is none.

    One with halves of surrogate pairs is none: other parsers refuse it.
    """
    try:
        value = loads(text)
        if isinstance(value, str):
            text, value = value, loads(value)
        whole = is_unicode(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError):
        return None
    return text if isinstance(value, dict) and whole and is_unicode(text) else None


def is_unicode(text: str) -> bool:
    """True if a text can be sent: it has no halves of surrogate pairs, which JSON can escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_string(reader: Reader) -> Steps[str | None]:
    """Read a short string; None if there is none."""
    while True:
        found = _STRING.match(reader.text, reader.at, reader.at + MAX_NAME + 2)
        if found is not None:
            try:
                value = loads(reader.take(len(found[0])))
            except ValueError:
                return None
            return value if is_unicode(value) else None
        begun = reader.text[reader.at : reader.at + MAX_NAME + 2]
        if (begun and begun[0] != '"') or len(begun) > MAX_NAME or not (yield from reader.more()):
            return None


def read_value(reader: Reader) -> Steps[str]:
    """Read a value, as far as it goes. Return its text; "": there is none."""
    if (yield from reader.peek()) in ("{", "[", '"'):
        return (yield from _held_value(reader))
    found: list[str] = []
    while (scalar := _SCALAR.match(reader.text, reader.at)) is not None:
        found.append(reader.take(len(scalar[0])))
        if reader.at < len(reader.text) or not (yield from reader.more()):
            break
    return "".join(found)


def stream_value(reader: Reader) -> Steps[bool]:
    """Give on a list or an object as arguments, as it comes. Return whether it was closed."""
    extent = Extent()
    while True:
        end = extent.scan(reader.text, reader.at)
        if end > reader.at:
            yield Arguments(reader.take(end - reader.at))
        if extent.ended or not (yield from reader.more()):
            return extent.closed


def _held_value(reader: Reader) -> Steps[str]:
    extent, found = Extent(), []
    while True:
        found.append(reader.take(extent.scan(reader.text, reader.at) - reader.at))
        if extent.ended or not (yield from reader.more()):
            return "".join(found)


class Extent:
    """Finds where a list, an object or a string ends.

    Attributes:
        closed: its end was found.
        ended: so it was, or it is no JSON from there on.
        in_string: it is within a string.
    """

    def __init__(self) -> None:
        self._closers: list[str] = []
        self.in_string = False
        self.closed = self.ended = False

    def scan(self, text: str, at: int) -> int:
        """Return how far a text belongs to the value, from a position on."""
        while at < len(text) and not self.ended:
            before = at
            at = self._in_string(text, at) if self.in_string else self._outside(text, at)
            if at == before:
                break
        return at

    def _in_string(self, text: str, at: int) -> int:
        plain = _QUOTED.match(text, at)
        if plain is not None:
            return plain.end()
        if text[at] == "\\":
            return at + 2 if at + 1 < len(text) else at
        self.in_string = False
        self.closed = self.ended = not self._closers
        return at + 1

    def _outside(self, text: str, at: int) -> int:
        plain = _PLAIN.match(text, at)
        if plain is not None:
            return plain.end()
        one = text[at]
        if one == '"':
            self.in_string = True
        elif one in _CLOSED_BY:
            self._closers.append(_CLOSED_BY[one])
        elif self._closers.pop() != one:
            self.ended = True
            return at
        else:
            self.closed = self.ended = not self._closers
        return at + 1
