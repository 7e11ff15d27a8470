"""Text of a growing list of ids, whole characters at a time."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Collection, Iterable

from headrace_engine.result_types import StopMatch

TokenBytes = Callable[[int], bytes]
"""The bytes that an id stands for."""


class Detokenizer:
    """Turns ids into text one by one; joined, the pieces are the text of all ids.

    Bytes that do not form a whole character yet wait for the next id. Bytes that can never form one become U+FFFD,
    at the place where a decoder of the whole would put it. Two things differ from what the tokenizers library makes of
    SentencePiece ids: in a run of byte tokens that is no UTF-8 as a whole, the characters that are valid stay, and the
    space before the first word stays, since the text goes on where the prompt ended.

    Args:
        token_bytes: the bytes of an id.
        skipped: ids that leave no text.
        cut: bytes of a character that ids before began.

    Attributes:
        cut: the bytes of a character that is not whole yet.
        stop: None: nothing stops it.
    """

    stop: StopMatch | None = None

    def __init__(self, token_bytes: TokenBytes, skipped: Collection[int], cut: bytes = b"") -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self.cut = cut

    def push(self, token_id: int) -> str:
        """The text that this id completes."""
        if token_id in self._skipped:
            return ""
        data = self.cut + self._token_bytes(token_id)
        text, used = utf_8_decode(data, "replace")
        self.cut = data[used:]
        return text

    def flush(self) -> str:
        """The text of what still waits: U+FFFD for a character that was cut, else nothing."""
        data, self.cut = self.cut, b""
        return utf_8_decode(data, "replace", True)[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids that follow, up to the end."""
        return "".join(map(self.push, ids)) + self.flush()
