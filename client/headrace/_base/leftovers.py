"""Copies of requests that were left on engines which did not answer, until they are released."""

from __future__ import annotations

import threading

from headrace._base.retry import Time

SWEEP_SECONDS = 2.0
"""Seconds between two attempts to release what was left behind."""

PATIENCE = 120.0
"""Seconds after which a copy is left to its lease."""


class Leftovers:
    """A thread-safe set of handles to release, each for a limited time.

    Args:
        clock: source of time.
    """

    def __init__(self, clock: Time) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._swept = False
        self._lock = threading.Lock()

    def add(self, handle: str) -> bool:
        """Add a handle; return True if the caller is to begin a sweep, as none goes on."""
        with self._lock:
            self._since[handle] = self._clock.monotonic()
            begin, self._swept = not self._swept, True
            return begin

    def due(self) -> list[str]:
        """Return the handles to try now; with the empty list the sweep ends."""
        with self._lock:
            old = self._clock.monotonic() - PATIENCE
            self._since = {handle: since for handle, since in self._since.items() if since > old}
            self._swept = bool(self._since)
            return list(self._since)

    def done(self, handle: str) -> None:
        """Forget a handle: it was released, or its engine is gone."""
        with self._lock:
            self._since.pop(handle, None)
