"""Calls that are objects of JSON, or lists of them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_proto.pure.answers.json_text import object_in, read_string, read_value, stream_value
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Steps
from headrace_proto.pure.answers.reader import Reader

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id")
_OTHERS = ("type", "function_id", "index")


@dataclass(frozen=True)
class JsonCalls:
    """Calls between two marks: one object or several, in a list or not.

    Attributes:
        open: the mark before them; "": they are the whole text.
        close: the mark after them; "": none.
        listed: the model was taught to write a list.
        name: key of the function's name; "": the name itself is the key of the arguments.
        arguments: key of its arguments.
    """

    open: str
    close: str
    listed: bool = False
    name: str = "name"
    arguments: str = "arguments"

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks."""
        return tuple(filter(None, (self.open, self.close)))

    def read(self, reader: Reader) -> Steps[bool]:
        """Read what follows the mark. Return whether it is a call; if not, what was read is kept."""
        yield from reader.space()
        listed = yield from reader.sees("[")
        called = False
        while True:
            yield from reader.space()
            found = yield from (_read_call(reader) if self.name else _read_keyed(reader))
            if not found:
                return called
            called = True
            if self.open and not self.close and not self.listed and not listed:  # What comes after it is text.
                break
            reader.keep()
            yield from reader.space()
            yield from reader.sees_one((",", ";"))
            yield from reader.space()
            if (listed and (yield from reader.sees("]"))) or (yield from reader.peek()) != "{":
                break
        reader.commit()
        return called


@dataclass
class _Object:
    """A call, as far as it is known."""

    name: str | None = None
    id: str | None = None
    arguments: str = "{}"
    begun: bool = False


def _read_call(reader: Reader) -> Steps[bool]:
    """Read one object; False: it is no call."""
    if not (yield from reader.sees("{")):
        return False
    found = _Object()
    while True:
        yield from reader.space()
        if not (yield from _read_entry(reader, found)):
            return found.begun
        yield from reader.space()
        if not (yield from reader.sees(",")):
            break
    if not (yield from reader.sees("}")) or found.begun:
        return found.begun
    arguments = object_in(found.arguments)
    if found.name is None or arguments is None:
        return False
    reader.commit()
    yield CallBegin(found.name, found.id)
    yield Arguments(arguments)
    return True


def _read_entry(reader: Reader, found: _Object) -> Steps[bool]:
    """Read a key and its value; False: they are none of a call."""
    key = yield from read_string(reader)
    yield from reader.space()
    if key is None or not (yield from reader.sees(":")):
        return False
    yield from reader.space()
    if key in _NAMES or key in _IDS:
        text = yield from read_string(reader)
        if key in _NAMES:
            found.name = text
        else:
            found.id = text
        return text is not None
    if key in _ARGUMENTS and found.name is not None and not found.begun and (yield from reader.peek()) == "{":
        return (yield from _stream(reader, found))
    if key not in _ARGUMENTS and key not in _OTHERS:
        return False
    value = yield from read_value(reader)
    if key in _ARGUMENTS:
        found.arguments = value
    return bool(value)


def _stream(reader: Reader, found: _Object) -> Steps[bool]:
    reader.commit()
    found.begun = True
    yield CallBegin(str(found.name), found.id)
    return (yield from stream_value(reader))


def _read_keyed(reader: Reader) -> Steps[bool]:
    """Read an object whose only key is the function's name; False: it is none."""
    if not (yield from reader.sees("{")):
        return False
    yield from reader.space()
    name = yield from read_string(reader)
    yield from reader.space()
    if name is None or not (yield from reader.sees(":")):
        return False
    yield from reader.space()
    if (yield from reader.peek()) != "{":
        return False
    reader.commit()
    yield CallBegin(name)
    yield from stream_value(reader)
    yield from reader.space()
    yield from reader.sees("}")
    return True
