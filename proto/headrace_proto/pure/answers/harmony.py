"""Messages of gpt-oss: each names its channel, and to whom it goes."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace_proto.pure.answers.json_text import stream_value
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Piece, Steps, Thought
from headrace_proto.pure.answers.reader import Reader, as_text

MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
"""Its marks, all of them special tokens."""

FINAL = "<|channel|>final<|message|>"
"""The header of what the user is to read."""

ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
"""Marks of which the first one ends the text of a message."""

_BEGINNINGS = ("<", " ", "a")  # Of a channel, of a recipient, of "assistant".
_MAX_HEADER = 1024
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"(?:^|\s)to=(?:functions\.)?([\w.:/-]+)")
_NOBODY = ("assistant", "user", "all")


def read(reader: Reader) -> Steps[None]:
    """Read an answer: the prompt has begun its first message."""
    while True:
        reader.keep()
        begun = yield from reader.sees("<|start|>")
        if not begun and (yield from reader.peek()) not in _BEGINNINGS:
            break
        header, end = yield from reader.until(["<|message|>"], _MAX_HEADER)
        if end < 0:
            break
        begin, wrap = _kind(header)
        reader.commit()
        if begin is not None:
            yield begin
            yield from reader.space()
            if (yield from reader.peek()) == "{":  # Marks within its strings are parts of these.
                yield from stream_value(reader)
        if (yield from reader.upto(ENDS, wrap)) == ENDS.index("<|start|>"):
            continue
        yield from reader.space()
    if kept := reader.kept():
        yield kept
    yield from reader.rest(as_text)


def read_or_json(reader: Reader) -> Steps[None]:
    """Read calls, or else one final message that is JSON: marks are parts of its strings."""
    if (yield from reader.sees(FINAL)):
        yield from reader.rest(as_text)
    else:
        yield from read(reader)


def _kind(header: str) -> tuple[CallBegin | None, Callable[[str], Piece]]:
    """Return what a header begins, and what the text after it is."""
    channel = _CHANNEL.findall(header)
    recipients = [one for one in _RECIPIENT.findall(header.replace("<|channel|>", " ")) if one not in _NOBODY]
    if recipients:
        return CallBegin(recipients[-1]), Arguments
    return None, Thought if channel and channel[-1] == "analysis" else as_text
