"""What machines find in answers, whatever the pieces in which these come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace_proto.pure.answers.formats import machine_of
from headrace_proto.pure.answers.pieces import Arguments, CallBegin, Machine, Piece, Thought


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces of the same kind that follow each other, as one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, str) and isinstance(last, str):
            found[-1] = last + piece
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            found[-1] = Thought(last.text + piece.text)
        elif isinstance(piece, Arguments) and isinstance(last, Arguments):
            found[-1] = Arguments(last.text + piece.text)
        else:
            found.append(piece)
    return found


def fed(machine: Machine, text: str, cuts: Iterable[int] = ()) -> list[Piece]:
    """What a machine finds in a text that comes in pieces, cut at some places."""
    found: list[Piece] = []
    begin = 0
    for cut in [*cuts, len(text)]:
        found += machine.feed(text[begin:cut])
        begin = cut
    return joined([*found, *machine.end()])


def parted(
    calls: str,
    text: str,
    thoughts: str = "",
    *,
    opened: bool = False,
    tools: Sequence[Any] = (),
    size: int = 0,
    or_json: bool = False,
    shown: bool = False,
) -> list[Any]:
    """What the machine of a format finds in a text, in pieces of some size; a call as its name and its arguments."""
    machine = machine_of(calls, thoughts, opened, tools, or_json=or_json, shown=shown)
    pieces = fed(machine, text, range(size, len(text), size) if size else ())
    found: list[Any] = []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            found.append((piece.name, ""))
        elif isinstance(piece, Arguments):
            found[-1] = (found[-1][0], found[-1][1] + piece.text)
        else:
            found.append(piece)
    return found
