"""Keep the texts of messages from being read as control tokens."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

# Private-use characters around digits: unaffected by trimming and changes of case, and never written by accident.
_OPEN, _CLOSE = f"\ue000{secrets.randbits(64)}:", "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]*){_CLOSE}")


class Shield:
    """Replace the names of special tokens in messages by marks, and find the marks in the rendered text.

    Args:
        special_texts: the names of the special tokens.
    """

    def __init__(self, special_texts: Iterable[str] = ()) -> None:
        self._texts = sorted({text for text in special_texts if text}, key=len, reverse=True)
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or "(?!)")
        self._heads = {text[:end] for text in self._texts for end in range(1, len(text))}
        self._longest_head = max(map(len, self._heads), default=0)

    def mark(self, text: str) -> str:
        """Return a text with a mark for each name, and one at its end if the next text might complete a name."""
        marked = self._pattern.sub(lambda match: f"{_OPEN}{self._numbers[match[0]]}{_CLOSE}", text)
        ends_open = any(text[-length:] in self._heads for length in range(1, self._longest_head + 1))
        return f"{marked}{_OPEN}{_CLOSE}" if ends_open else marked

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """Return the pieces of a rendered text without the marks; True: the name of a token, from a message."""
        pieces = []
        parts = _MARK.split(rendered)  # text, number, text, number, …, text
        for index, part in enumerate(parts):
            pieces.append((self._texts[int(part)] if index % 2 and part else part, bool(index % 2)))
        return [piece for piece in pieces if piece[0]]

    def unmark(self, rendered: str) -> str:
        """Return a rendered text with the original names instead of marks."""
        return "".join(text for text, _ in self.split(rendered))
