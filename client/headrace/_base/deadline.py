"""Deadlines."""

from __future__ import annotations

from headrace._base.retry import Time

FOR_EVER = 1e9
"""Seconds (31 years) from which on a limit counts as none: gRPC's deadlines overflow beyond."""


class Deadline:
    """A point in time at which waiting ends.

    Args:
        clock: source of time.
        seconds: seconds from now; None, or at least FOR_EVER: no deadline.
    """

    def __init__(self, clock: Time, seconds: float | None) -> None:
        self._clock = clock
        self._end = None if seconds is None or seconds >= FOR_EVER else clock.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds left, at least 0; None: no deadline."""
        return None if self._end is None else max(0.0, self._end - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        """True if no time is left."""
        return self.left() == 0.0
