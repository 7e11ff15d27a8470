"""Durations of steps, by the number of tokens that they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MEMORY = 60.0
"""Seconds after which a size class without new steps is dropped: else one slow step could refuse requests for ever."""

_WEIGHT = 1 / 8
"""Weight of the newest step in the mean."""


@dataclass(slots=True)
class _Class:
    """Steps of one size class: mean size, mean duration, and the time of the newest."""

    tokens: float
    seconds: float
    time: float


class StepTimes:
    """The mean duration and size of the newest steps of each size class: 1 token, 2 to 3, 4 to 7, and so on.

    Durations are never extrapolated upwards: a step takes at least as long as a smaller one. So every forecast is a
    lower bound, which is 0 before anything was measured.

    Args:
        clock: returns seconds since a fixed time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._classes: dict[int, _Class] = {}

    def note(self, tokens: int, seconds: float) -> None:
        """Record the duration of a step with `tokens` tokens."""
        size, now = tokens.bit_length(), self._clock()
        known = self._classes.get(size)
        if known is None or known.time < now - MEMORY:
            self._classes[size] = _Class(tokens, seconds, now)
            return
        known.tokens += (tokens - known.tokens) * _WEIGHT
        known.seconds += (seconds - known.seconds) * _WEIGHT
        known.time = now

    def time_of(self, tokens: int) -> float:
        """Return the minimum seconds of a step with `tokens` tokens; 0 if no step that small was measured."""
        size, oldest = tokens.bit_length(), self._clock() - MEMORY
        fresh = (each for each, known in self._classes.items() if each <= size and known.time >= oldest)
        nearest = max(fresh, default=None)
        if nearest is None:
            return 0.0
        known = self._classes[nearest]
        return known.seconds * min(1.0, tokens / known.tokens)

    def time_of_all(self, tokens: int, most: int) -> float:
        """Return the minimum seconds for `tokens` tokens, in steps of at most `most`."""
        whole, rest = divmod(tokens, most)
        return whole * self.time_of(most) + (self.time_of(rest) if rest else 0.0)
