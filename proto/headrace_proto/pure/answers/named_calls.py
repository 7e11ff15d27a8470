"""Calls that are a name, a mark, and an object of JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace_proto.pure.answers.json_calls import JsonCalls
from headrace_proto.pure.answers.json_text import MAX_NAME, stream_value
from headrace_proto.pure.answers.pieces import CallBegin, Steps
from headrace_proto.pure.answers.reader import Reader

NAME = re.compile(r"[\w.:/-]+")
"""Names that a function may have."""

_NUMBERED = re.compile(r"(?:functions\.)?(?P<name>[\w./-]+):\d+")


@dataclass(frozen=True)
class NamedCalls:
    """A name and an object.

    Attributes:
        open: the mark before the name.
        middle: the mark between the two.
        close: the mark after them; "": none.
        id_mark: the mark between the name and an id, where there may be one.
        numbered: the name is written as an id, functions.NAME:NUMBER.
    """

    open: str
    middle: str
    close: str
    id_mark: str = ""
    numbered: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks."""
        return tuple(filter(None, (self.open, self.middle, self.close, self.id_mark)))

    def read(self, reader: Reader) -> Steps[bool]:
        """Read what follows the mark. Return whether it is a call; if not, what was read is kept."""
        yield from reader.space()
        name, end = yield from reader.until([self.middle.rstrip(), *filter(None, [self.id_mark])], MAX_NAME)
        call_id = None
        if end == 1:
            call_id, end = yield from reader.until([self.middle.rstrip()], MAX_NAME)
        name = name.strip()
        if self.numbered and (numbered := _NUMBERED.fullmatch(name)) is not None:
            name, call_id = numbered["name"], name
        yield from reader.space()
        if end < 0 or not NAME.fullmatch(name) or (yield from reader.peek()) != "{":
            return False
        reader.commit()
        yield CallBegin(name, call_id)
        yield from stream_value(reader)
        return True


@dataclass(frozen=True)
class EitherCalls:
    """Calls in either of two ways with the same mark before them."""

    json: JsonCalls
    named: NamedCalls

    @property
    def open(self) -> str:
        """The mark before them."""
        return self.json.open

    @property
    def close(self) -> str:
        """The mark after them."""
        return self.json.close

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks."""
        return tuple(dict.fromkeys((*self.json.marks, *self.named.marks)))

    def read(self, reader: Reader) -> Steps[bool]:
        """Read what follows the mark. Return whether it is a call; if not, what was read is kept."""
        yield from reader.space()
        if (yield from reader.peek()) in ("[", "{"):
            return (yield from self.json.read(reader))
        return (yield from self.named.read(reader))
