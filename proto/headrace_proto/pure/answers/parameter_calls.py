"""Calls whose parameters stand one by one between marks."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass

from headrace_proto.pure.answers.json_depth import is_json
from headrace_proto.pure.answers.json_text import MAX_NAME, Extent, TooDeep, is_unicode, loads, quoted
from headrace_proto.pure.answers.named_calls import NAME
from headrace_proto.pure.answers.parameter_types import Types
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Piece, Steps
from headrace_proto.pure.answers.reader import Reader

_JSON_BEGINS = ("{", "[", '"')
_STRING = frozenset({"string"})
_MAX_LITERAL = 64 << 10  # Characters: Python's parser takes much memory for each.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class ParameterCalls:
    """A name, and parameters.

    Attributes:
        open: the mark before the name.
        name_end: the mark after it; "": white space, or the next mark.
        key_open: the mark before a key.
        key_close: the mark after it.
        value_opens: marks before a value; of two, the first says that it is a string, the second that it is JSON.
        value_close: the mark after a value.
        close: the mark after the last one.
        line_breaks: a line break at each end of a value is not part of it.
    """

    open: str
    name_end: str
    key_open: str
    key_close: str
    value_opens: tuple[str, ...]
    value_close: str
    close: str
    line_breaks: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks."""
        parts = (self.open, self.name_end, self.key_open, self.key_close, *self.value_opens, self.value_close)
        return tuple(filter(None, (*parts, self.close)))

    def read(self, reader: Reader, types: Types) -> Steps[bool]:
        """Read what follows the mark. Return whether it is a call; if not, what was read is kept."""
        yield from reader.space()
        name = yield from self._name(reader)
        if not NAME.fullmatch(name):
            return False
        reader.commit()
        yield CallBegin(name)
        yield Arguments("{")
        count = 0
        while (yield from self._parameter(reader, types.get(name, {}).get, count)):
            count += 1
        if (yield from reader.sees(self.close)) or not reader.over:
            yield Arguments("}")
        return True

    def _name(self, reader: Reader) -> Steps[str]:
        if self.name_end:
            name, end = yield from reader.until([self.name_end], MAX_NAME)
            return "" if end < 0 else name
        found: list[str] = []
        while (one := (yield from reader.peek())) and one != "<" and not one.isspace() and len(found) <= MAX_NAME:
            found.append(reader.take(1))
        return "".join(found) if one else ""  # A name that may go on is none yet.

    def _parameter(self, reader: Reader, types: Callable[[str], frozenset[str] | None], count: int) -> Steps[bool]:
        """Read a key and its value. Return whether there may be more."""
        yield from reader.space()
        if not (yield from reader.sees(self.key_open)):
            return False
        key, end = yield from reader.until([self.key_close], MAX_NAME)
        if end < 0:
            return False
        yield Arguments(f'{", " if count else ""}"{quoted(key)}": ')
        if self.value_opens:
            yield from reader.space()
            opened = yield from reader.sees_one(self.value_opens)
        allowed = types(key)
        if len(self.value_opens) == 2:
            allowed = _STRING if opened == 0 else None
        if self.line_breaks:
            yield from reader.sees("\n")
        return (yield from (self._string(reader) if allowed == _STRING else self._value(reader)))

    def _string(self, reader: Reader) -> Steps[bool]:
        yield Arguments('"')
        if (yield from reader.upto(self._closes, _quoted_part)) < 0:
            return False
        yield Arguments('"')
        return True

    def _value(self, reader: Reader) -> Steps[bool]:
        """Read a value that may be JSON, to its end."""
        text, end = yield from reader.held_upto(self._closes)
        if end >= 0 and reader.trusts and text.lstrip()[:1] in _JSON_BEGINS:
            text = yield from self._whole_json(reader, text, self._closes[end])
        if end >= 0:
            yield Arguments(_as_json(text))
        return end >= 0

    def _whole_json(self, reader: Reader, first: str, mark: str) -> Steps[str]:
        """Return a value, of which the first part and a mark were read. A mark within a string of JSON ends nothing."""
        extent, parts = Extent(), [first]
        extent.scan(first, len(first) - len(first.lstrip()))
        while extent.in_string:
            more, end = yield from reader.held_upto(self._closes)
            parts += [mark, more]
            extent.scan(mark + more, 0)
            if end < 0:
                break
            mark = self._closes[end]
        else:
            if len(parts) == 1 or _is_json("".join(parts)):
                return "".join(parts)
            parts.append(mark)
        reader.unread("".join(parts[2:]))
        reader.trusts = False
        return first

    @property
    def _closes(self) -> tuple[str, ...]:
        return (f"\n{self.value_close}", self.value_close) if self.line_breaks else (self.value_close,)


def _quoted_part(text: str) -> Piece:
    return Arguments(quoted(text))


def _as_json(text: str) -> str:
    """Return a text as JSON: as it stands, if it is that, or as Python prints it, else as a string."""
    stripped = text.strip()
    stripped = _PYTHON.get(stripped, stripped)
    if not _is_json(stripped):
        return _from_python(stripped) or f'"{quoted(text)}"'
    return stripped if is_unicode(stripped) else f'"{quoted(text)}"'


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except TooDeep:
        return is_json(text)
    except ValueError:
        return False
    return True


def _from_python(text: str) -> str:
    """Return the JSON of a list or dictionary as Python prints it; "": it is none."""
    if text[:1] not in ("[", "{") or len(text) > _MAX_LITERAL:
        return ""
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ""
