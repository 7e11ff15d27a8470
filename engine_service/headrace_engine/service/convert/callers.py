"""The caller of a call: the party whose share of common limits it counts against, and whether it may name owners."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from headrace_engine.errors import FieldViolation, PermissionDenied

METADATA_KEY = "headrace-caller"
"""Metadata by which a gateway identifies its clients' connections. Trusted from any peer, but for shares alone."""

MAX_CALLER = 64
"""Maximum characters of it that are used."""

_caller: ContextVar[str] = ContextVar("headrace-caller", default="")
_trusted: ContextVar[bool] = ContextVar("headrace-trusted", default=True)


def note_caller(context: Any, *, trusted: bool) -> None:
    """Record the caller of the current call: as named by its gateway, else its connection.

    Args:
        context: of the call.
        trusted: it may name the owner of a request.
    """
    _trusted.set(trusted)
    named = dict(context.invocation_metadata() or ()).get(METADATA_KEY) or context.peer()
    _caller.set(str(named)[:MAX_CALLER])


def caller() -> str:
    """Return the caller of the current call; "" in process."""
    return _caller.get()


def check_owner(owner: str, path: str = "owner") -> None:
    """Refuse an owner that the current caller may not name.

    Raises:
        PermissionDenied: it names one, and is not trusted.
    """
    if not owner or _trusted.get():
        return
    why = (
        "is set by a peer that is not trusted: only peers on this machine, with a certificate (--tls-client-ca), or "
        "with a secret (--secret-file) may name owners"
    )
    raise PermissionDenied(f"{path} {why}", violations=[FieldViolation(path, why)])
