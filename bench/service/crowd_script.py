"""The texts of a scripted engine's steps."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Script:
    """Knows the text of any run of steps.

    Args:
        pieces: the text of each id of the cycle, as bytes.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(piece) for piece in (*pieces, *pieces)]
        self._whole = "".join(texts)
        self._ends: list[int] = [0]
        for text in texts:
            self._ends.append(self._ends[-1] + len(text))
        self._steps: dict[int, list[int]] = {}
        for step, end in enumerate(self._ends):
            self._steps.setdefault(end, []).append(step)

    def has(self, text: str, tokens: int) -> bool:
        """Return whether a text is that of some consecutive steps, this many."""
        at = self._whole.find(text)
        while at >= 0:
            for step in self._steps.get(at, ()):
                if step + tokens < len(self._ends) and self._ends[step + tokens] == at + len(text):
                    return True
            at = self._whole.find(text, at + 1)
        return False
