"""Leases: how long a request without readers is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_engine.engine.requests.timer_queue import TimerQueue
from headrace_engine.engine.results.statistics import Clock

if TYPE_CHECKING:
    from headrace_engine.engine.requests.requests import Request


class Leases:
    """Checks each request when its lease may have expired.

    A request with time left is checked again later, so readers that come and go do not touch the queue. A request is
    in the queue at most once.

    Args:
        expired: called with a request whose lease has expired.
    """

    def __init__(self, clock: Clock, expired: Callable[[Request], None]) -> None:
        self.clock = clock
        self._expired = expired
        self._timers = TimerQueue(clock, self._look)

    def watch(self, request: Request) -> None:
        """Schedule a check of a request without readers; does nothing while it has any."""
        due = request.next_look(self.clock())
        if due is not None:
            self._timers.set(request.serial, due, request)

    def forget(self, request: Request) -> None:
        """Drop a released request, so that its memory can be freed."""
        self._timers.drop(request.serial)

    def sweep(self) -> None:
        """Check all requests that are due."""
        self._timers.sweep()

    def close(self) -> None:
        """Stop all checks: no lease expires any more."""
        self._timers.close()

    def _look(self, request: Request, now: float) -> None:
        expires = request.lease_expires
        if expires is not None and expires <= now:
            self._expired(request)
        self.watch(request)
