"""How much of a time span is left."""

from __future__ import annotations

from headrace._base.retry import Time

FOR_EVER = 1e9
"""Seconds (31 years) from which on a limit is none: gRPC's own deadlines overflow somewhere beyond."""


class Deadline:
    """A moment after which waiting ends.

    Args:
        clock: time.
        seconds: from now; None, or FOR_EVER and more: never.
    """

    def __init__(self, clock: Time, seconds: float | None) -> None:
        self._clock = clock
        self._end = None if seconds is None or seconds >= FOR_EVER else clock.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left, at least 0; None: no end."""
        return None if self._end is None else max(0.0, self._end - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return self.left() == 0.0
