"""The lease of a request: ranges, defaults, and the effective lease."""

from __future__ import annotations

from headrace_engine.config import Lease
from headrace_engine.errors import FieldViolation

DEFAULT_LEASE = Lease(running=60.0, ended=600.0)
"""Lease of requests to a model without a default_lease."""


def lease_violations(lease: Lease | None, max_lease: float, path: str) -> list[FieldViolation]:
    """Return the violations of a lease.

    Args:
        max_lease: maximum of each part, in seconds.
        path: path of the lease in the request, such as "config.lease".
    """
    parts = {} if lease is None else {"running": lease.running, "ended": lease.ended}
    return [
        FieldViolation(f"{path}.{name}", f"= {value:g} s is out of range; allowed: 0 to {max_lease:g} s (max_lease)")
        for name, value in parts.items()
        if value is not None and not 0 <= value <= max_lease
    ]


def resolved_lease(lease: Lease | None, default: Lease | None, max_lease: float) -> Lease:
    """Return a lease with both parts set; "for ever" (0) becomes `max_lease`.

    Args:
        lease: lease of the request, in range.
        default: lease of the model, for parts that were not sent; DEFAULT_LEASE fills the rest.
    """
    sent, default = lease or Lease(), default or Lease()
    running = _first(sent.running, default.running, DEFAULT_LEASE.running)
    ended = _first(sent.ended, default.ended, DEFAULT_LEASE.ended)
    return Lease(running=min(running or max_lease, max_lease), ended=min(ended or max_lease, max_lease))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
