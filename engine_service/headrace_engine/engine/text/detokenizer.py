"""Text of a growing list of ids, whole characters at a time."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from headrace_engine.result_types import StopMatch

TokenBytes = Callable[[int], bytes]
"""The bytes that an id stands for."""

_LONGEST_CHARACTER = 4
"""Bytes of a character in UTF-8, at most."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a character that is not whole.

    Attributes:
        data: its bytes.
        of_prompt: all of them are the prompt's: where what follows does not complete them, they leave no text.
    """

    data: bytes = b""
    of_prompt: bool = False


WHOLE = Cut()


def cut_of_prompt(ids: Sequence[int], token_bytes: TokenBytes, skipped: Collection[int]) -> Cut:
    """What the last ids of a prompt leave of a character."""
    data = b""
    for token_id in reversed(ids):
        if token_id not in skipped:
            data = token_bytes(token_id) + data
        if len(data) >= _LONGEST_CHARACTER:
            break
    _, used = utf_8_decode(data, "replace")
    return Cut(data[used:], of_prompt=True) if used < len(data) else WHOLE


def _goes_on(cut: bytes, added: bytes) -> bool:
    """Whether a byte more of the same character is there."""
    try:
        utf_8_decode(cut + added[:1], "strict")
    except UnicodeDecodeError:
        return False
    return True


class Detokenizer:
    """Turns ids into text one by one; joined, the pieces are the text of all ids.

    Bytes that do not form a whole character yet wait for the next id. Bytes that can never form one become U+FFFD,
    at the place where a decoder of the whole would put it. Two things differ from what the tokenizers library makes of
    SentencePiece ids: in a run of byte tokens that is no UTF-8 as a whole, the characters that are valid stay, and the
    space before the first word stays, since the text goes on where the prompt ended.

    Args:
        token_bytes: the bytes of an id.
        skipped: ids that leave no text.
        start: what ids before left of a character that they began.

    Attributes:
        cut: the bytes of a character that is not whole yet, and whose they are.
        stop: None: nothing stops it.
    """

    stop: StopMatch | None = None

    def __init__(self, token_bytes: TokenBytes, skipped: Collection[int], start: Cut = WHOLE) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self.cut = start

    def push(self, token_id: int) -> str:
        """The text that this id completes."""
        if token_id in self._skipped:
            return ""
        added = self._token_bytes(token_id)
        if not added:
            return ""
        data = added if self.cut.of_prompt and not _goes_on(self.cut.data, added) else self.cut.data + added
        text, used = utf_8_decode(data, "replace")
        self.cut = Cut(data[used:]) if used < len(data) else WHOLE
        return text

    def flush(self) -> str:
        """The text of what still waits: U+FFFD for a character that was cut, else nothing."""
        cut, self.cut = self.cut, WHOLE
        return "" if cut.of_prompt else utf_8_decode(cut.data, "replace", True)[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids that follow, up to the end."""
        return "".join(map(self.push, ids)) + self.flush()
