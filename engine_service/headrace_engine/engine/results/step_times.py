"""What steps take, by the number of tokens that they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MEMORY = 60.0
"""Seconds after which what no step has confirmed is forgotten: else one slow step would refuse all that is like it."""

_WEIGHT = 1 / 8
"""Of the newest step in its mean."""


@dataclass(slots=True)
class _Class:
    """Steps of one size class: their mean size and time, and when the newest was."""

    tokens: float
    seconds: float
    time: float


class StepTimes:
    """The mean time and size of the newest steps of each size class: 1 token, 2 to 3, 4 to 7, and so on.

    Times of other sizes are never guessed upwards: a step takes at least what a smaller one took. So what is foretold
    from them is a lower bound, which is 0 before anything was measured.

    Args:
        clock: seconds since whenever.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._classes: dict[int, _Class] = {}

    def note(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens in this time."""
        size, now = tokens.bit_length(), self._clock()
        known = self._classes.get(size)
        if known is None or known.time < now - MEMORY:
            self._classes[size] = _Class(tokens, seconds, now)
            return
        known.tokens += (tokens - known.tokens) * _WEIGHT
        known.seconds += (seconds - known.seconds) * _WEIGHT
        known.time = now

    def time_of(self, tokens: int) -> float:
        """Return seconds that a step of so many tokens takes at least; 0 where none that small was seen."""
        size, oldest = tokens.bit_length(), self._clock() - MEMORY
        fresh = (each for each, known in self._classes.items() if each <= size and known.time >= oldest)
        nearest = max(fresh, default=None)
        if nearest is None:
            return 0.0
        known = self._classes[nearest]
        return known.seconds * min(1.0, tokens / known.tokens)

    def time_of_all(self, tokens: int, most: int) -> float:
        """Return seconds that so many tokens take at least, in steps of at most `most`."""
        whole, rest = divmod(tokens, most)
        return whole * self.time_of(most) + (self.time_of(rest) if rest else 0.0)
