"""What steps take, by the number of tokens that they compute."""

from __future__ import annotations

_WEIGHT = 1 / 8
"""Of the newest step in its mean."""


class StepTimes:
    """The mean time and size of the newest steps of each size class: 1 token, 2 to 3, 4 to 7, and so on.

    Times of other sizes are never guessed upwards: a step takes at least what a smaller one took. So what is foretold
    from them is a lower bound, which is 0 before anything was measured.
    """

    def __init__(self) -> None:
        self._classes: dict[int, tuple[float, float]] = {}

    def note(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens in this time."""
        size = tokens.bit_length()
        mean_tokens, mean_seconds = self._classes.get(size, (float(tokens), seconds))
        mean_tokens += (tokens - mean_tokens) * _WEIGHT
        mean_seconds += (seconds - mean_seconds) * _WEIGHT
        self._classes[size] = mean_tokens, mean_seconds

    def time_of(self, tokens: int) -> float:
        """Seconds that a step of so many tokens takes at least; 0 where no such step, and no smaller one, was seen."""
        size = tokens.bit_length()
        known = max((each for each in self._classes if each <= size), default=None)
        if known is None:
            return 0.0
        mean_tokens, seconds = self._classes[known]
        return seconds * min(1.0, tokens / mean_tokens)

    def time_of_all(self, tokens: int, most: int) -> float:
        """Seconds that so many tokens take at least, in steps of at most `most`."""
        whole, rest = divmod(tokens, most)
        return whole * self.time_of(most) + (self.time_of(rest) if rest else 0.0)
