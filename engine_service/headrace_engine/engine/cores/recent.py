"""Times of a model's newest requests, and their hits in its prefix cache: new ones are forecast by these."""

from __future__ import annotations

from collections import deque

from headrace_engine.engine.results.statistics import SequenceTimes

_REMEMBERED = 64
"""Number of newest requests whose prefix reuse is remembered."""

_WEIGHT = 1 / 8
"""Weight of the newest request in the means."""


class RecentRequests:
    """Means over the newest requests.

    Attributes:
        mean_duration: mean seconds from arrival to end.
        mean_service: mean seconds from the first step to the end; None before the first end.
    """

    def __init__(self) -> None:
        self._reused: deque[float] = deque(maxlen=_REMEMBERED)
        self.mean_duration = 1.0
        self.mean_service: float | None = None

    @property
    def best_reuse(self) -> float:
        """Largest share of its prompt that one of them found in the prefix cache."""
        return max(self._reused, default=0.0)

    def note_start(self, times: SequenceTimes) -> None:
        """Record that a sequence is in a step for the first time."""
        self._reused.append((times.cached_length or 0) / times.prompt_length)

    def note_end(self, times: SequenceTimes, now: float) -> None:
        """Record that a sequence has ended."""
        self.mean_duration += (now - times.arrival - self.mean_duration) * _WEIGHT
        if times.scheduled is not None:
            service = now - times.scheduled
            before = service if self.mean_service is None else self.mean_service
            self.mean_service = before + (service - before) * _WEIGHT
