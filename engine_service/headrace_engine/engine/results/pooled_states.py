"""The last hidden states of a prompt, pooled to one vector."""

from __future__ import annotations

import math
from array import array

from headrace_engine.ipc.step_output import PooledPiece


class PooledStates:
    """The sum of last hidden states of a prompt's tokens, from one on to the last.

    Args:
        first: index of the first token.
        length: number of the prompt's tokens.

    Attributes:
        position: index of the next token to add.
    """

    def __init__(self, first: int, length: int) -> None:
        self.position = first
        self._first, self._length = first, length
        self._sum = array("d")

    @property
    def complete(self) -> bool:
        """True if all tokens were added."""
        return self.position == self._length

    def add(self, piece: PooledPiece) -> None:
        """Add the states of the next tokens."""
        if piece.position != self.position:
            raise ValueError(f"the states are known up to token {self.position}, and {piece.position} came")
        states = array("d", piece.states)
        self._sum = array("d", map(float.__add__, self._sum, states)) if self._sum else states
        self.position = piece.end

    def vector(self, *, normalize: bool) -> array[float]:
        """Return their mean as float32, divided by its length if requested; a zero vector stays what it is."""
        count = self._length - self._first
        divisor = count * (math.hypot(*self._sum) / count or 1.0) if normalize else count
        return array("f", [value / divisor for value in self._sum])
