"""Rate limit of attaches, per connection."""

from __future__ import annotations

BURST = 2_048
"""Number of attaches that a connection may send at once."""

RATE = 4_096
"""Attaches per second beyond the burst. They take a few percent of an engine's event loop."""


class AttachPace:
    """Limits a connection to BURST attaches at once and RATE per second, as all share one stream to each engine.

    A connection keeps its pace from one session to the next, until BURST is allowed at once again.
    """

    def __init__(self) -> None:
        self._paid = float("-inf")

    def delay(self, count: int, now: float) -> float:
        """Count attaches. Return the seconds for which the connection must not be read."""
        self._paid = max(self._paid, now - BURST / RATE) + count / RATE
        return max(0.0, self._paid - now)

    def rest(self, now: float) -> float:
        """Return the seconds until BURST attaches are allowed at once again."""
        return max(0.0, self._paid + BURST / RATE - now)
