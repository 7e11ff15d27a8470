"""Events of streams as bytes; those that differ in one text alone are encoded but for it."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import msgspec

PLACE = token_hex(16)
"""Stands for the text of a template. Nobody can guess it, so no other text of an event is equal to it."""

_encoder = msgspec.json.Encoder()
_HOLE = f'"{PLACE}"'.encode()


def event_of(content: Any, name: str = "") -> bytes:
    """Return an event.

    Args:
        content: a struct, sent as JSON.
        name: kind of the event; "": it has none.
    """
    head = f"event: {name}\ndata: ".encode() if name else b"data: "
    return b"%b%b\n\n" % (head, _encoder.encode(content))


class Template:
    """Events that differ in one text.

    Args:
        content: a struct, with PLACE where the text is to be.
        name: as of `event_of`.
    """

    def __init__(self, content: Any, name: str = "") -> None:
        self._head, self._tail = event_of(content, name).split(_HOLE)

    def event(self, text: str) -> bytes:
        """Return the event with a text."""
        return b"%b%b%b" % (self._head, _encoder.encode(text), self._tail)
