"""Leases: how long a request is kept while nobody is there for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_engine.config import Lease
from headrace_engine.engine.alarms import Alarms
from headrace_engine.engine.statistics import Clock
from headrace_engine.errors import FieldViolation

if TYPE_CHECKING:
    from headrace_engine.engine.requests import Request

DEFAULT_LEASE = Lease(running=60.0, ended=600.0)
"""Lease of requests to a model that sets none."""


def lease_violations(lease: Lease | None, max_lease: float, path: str) -> list[FieldViolation]:
    """The parts of a lease that are out of range.

    Args:
        max_lease: seconds that no part may exceed.
        path: path of the lease in the request, such as "config.lease".
    """
    parts = {} if lease is None else {"running": lease.running, "ended": lease.ended}
    return [
        FieldViolation(f"{path}.{name}", f"= {value:g} s is out of range; allowed: 0 to {max_lease:g} s (max_lease)")
        for name, value in parts.items()
        if value is not None and not 0 <= value <= max_lease
    ]


def resolved_lease(lease: Lease | None, default: Lease | None, max_lease: float) -> Lease:
    """A lease with both parts set; "for ever" (0) is `max_lease`.

    Args:
        lease: what was sent, in range.
        default: what holds for parts that were not sent; parts that it leaves open are ours.
    """
    sent, default = lease or Lease(), default or Lease()
    running = _first(sent.running, default.running, DEFAULT_LEASE.running)
    ended = _first(sent.ended, default.ended, DEFAULT_LEASE.ended)
    return Lease(running=min(running or max_lease, max_lease), ended=min(ended or max_lease, max_lease))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


class Leases:
    """Looks at each request when its lease could have run out.

    A request that was looked at and has time left is looked at again; whoever arrives and leaves meanwhile costs
    nothing. So a request is in the books once, or not at all while somebody is there.

    Args:
        expired: called with a request whose lease ran out.
    """

    def __init__(self, clock: Clock, expired: Callable[[Request], None]) -> None:
        self.clock = clock
        self._expired = expired
        self._alarms = Alarms(clock, self._look)

    def watch(self, request: Request) -> None:
        """Nobody is there: look at the request in time. While somebody is, this does nothing."""
        due = request.next_look(self.clock())
        if due is not None:
            self._alarms.set(request.serial, due, request)

    def forget(self, request: Request) -> None:
        """The request is gone, and what it holds can be freed."""
        self._alarms.drop(request.serial)

    def sweep(self) -> None:
        """Look at everything that is due."""
        self._alarms.sweep()

    def close(self) -> None:
        """Let every lease run on for ever."""
        self._alarms.close()

    def _look(self, request: Request, now: float) -> None:
        expires = request.lease_expires
        if expires is not None and expires <= now:
            self._expired(request)
        self.watch(request)
