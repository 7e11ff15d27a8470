"""Where a text stands in its grammar."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

_BITS = 32


class GuideFailed(Exception):
    """The text so far took the parser beyond its limits."""


class Guide:
    """Follows one sequence, and knows which ids may come next.

    Args:
        matcher: at the beginning of the text; taken over.
        size: ids that the model has logits for.
        end: the id that the parser allows where the text may end; not one of the model's.
        eos_ids: the ids that end it instead.

    Attributes:
        allowed: one bit an id, the lowest first, of the ids that may come next. It is this array always.

    Raises:
        GuideFailed: a limit was reached.
    """

    def __init__(self, matcher: LLMatcher, size: int, end: int, eos_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._end = end
        self._eos_ids = [token_id for token_id in eos_ids if token_id < size]
        self._over = False
        self.allowed = array("I", bytes(4 * (end // _BITS + 1)))
        self._look()

    def take(self, token_ids: Sequence[int]) -> None:
        """The text goes on with these ids. One that was not allowed, such as the one that ends it, is its last.

        Raises:
            GuideFailed: a limit was reached.
        """
        if not self._over:
            self._over = self._matcher.try_consume_tokens(list(token_ids)) < len(token_ids)
            self._check_limits()
            self._look()

    def _look(self) -> None:
        bits = self.allowed
        place, size = bits.buffer_info()
        if self._over:
            bits[:] = array("I", bytes(bits.itemsize * size))
            return
        self._matcher.unsafe_compute_mask_ptr(place, bits.itemsize * size)
        self._check_limits()
        if self._take_bit(self._end):
            for token_id in self._eos_ids:
                bits[token_id // _BITS] |= 1 << token_id % _BITS

    def _take_bit(self, token_id: int) -> int:
        word, bit = token_id // _BITS, 1 << token_id % _BITS
        found = self.allowed[word] & bit
        self.allowed[word] &= ~bit
        return found

    def _check_limits(self) -> None:
        if self._matcher.is_error():
            why = first_line(self._matcher.get_error())
            raise GuideFailed(f"response_format: the text so far is too much for its grammar: {why}")


def first_line(message: str) -> str:
    """What a person needs of a message of several lines."""
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^|")]
    return " ".join(lines)[:300]
