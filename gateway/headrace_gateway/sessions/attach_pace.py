"""How fast one connection may attach."""

from __future__ import annotations

BURST = 2_048
"""Attaches that a connection may send at once."""

RATE = 4_096
"""Attaches that it may send a second beyond that: some hundredths of the time of an engine's event loop."""


class AttachPace:
    """Lets a connection attach BURST at once and then RATE a second: all attaches of a gateway share its stream."""

    def __init__(self) -> None:
        self._paid = float("-inf")

    def delay(self, count: int, now: float) -> float:
        """Returns how many seconds the connection is to be read no further, after so many attaches."""
        self._paid = max(self._paid, now - BURST / RATE) + count / RATE
        return max(0.0, self._paid - now)
