"""Decides when guesses are tried that would not gain by what is known: what they cost must not count."""

from __future__ import annotations

_TRIES = 4
"""Number of guesses of a trial."""

_PAUSE = 16
"""Number of steps between the first two trials; it doubles with each that shows no gain."""

_LONGEST_PAUSE = 256


class Trials:
    """Trials of guesses that take time to make, ever fewer while these do not gain."""

    def __init__(self) -> None:
        self._left = _TRIES
        self._wait = 0
        self._pause = _PAUSE

    def due(self) -> bool:
        """Return True if a step without gain should try a guess."""
        self._wait = max(0, self._wait - 1)
        return not self._wait

    def note_tried(self) -> None:
        """Note that a guess was tried."""
        self._left -= 1
        if not self._left:
            self._left, self._wait = _TRIES, self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def note_gain(self) -> None:
        """Note that guesses gain by what is known: if that changes, it was little that was wrong."""
        self._left, self._wait, self._pause = _TRIES, 0, _PAUSE
