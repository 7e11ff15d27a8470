"""Leases: how long a request is kept while nobody is there for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_engine.engine.requests.timer_queue import TimerQueue
from headrace_engine.engine.results.statistics import Clock

if TYPE_CHECKING:
    from headrace_engine.engine.requests.requests import Request


class Leases:
    """Looks at each request when its lease could have run out.

    A request that was looked at and has time left is looked at again; whoever arrives and leaves meanwhile costs
    nothing. So a request is in the queue once, or not at all while somebody is there.

    Args:
        expired: called with a request whose lease ran out.
    """

    def __init__(self, clock: Clock, expired: Callable[[Request], None]) -> None:
        self.clock = clock
        self._expired = expired
        self._timers = TimerQueue(clock, self._look)

    def watch(self, request: Request) -> None:
        """Nobody is there: look at the request in time. While somebody is, this does nothing."""
        due = request.next_look(self.clock())
        if due is not None:
            self._timers.set(request.serial, due, request)

    def forget(self, request: Request) -> None:
        """The request is gone, and what it holds can be freed."""
        self._timers.drop(request.serial)

    def sweep(self) -> None:
        """Look at everything that is due."""
        self._timers.sweep()

    def close(self) -> None:
        """Let every lease run on for ever."""
        self._timers.close()

    def _look(self, request: Request, now: float) -> None:
        expires = request.lease_expires
        if expires is not None and expires <= now:
            self._expired(request)
        self.watch(request)
