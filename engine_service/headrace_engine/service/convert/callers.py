"""The caller of a call: the party whose share of common limits it counts against."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

METADATA_KEY = "headrace-caller"
"""Metadata by which a gateway identifies its clients' connections. Trusted from any peer, but for shares alone."""

MAX_CALLER = 64
"""Maximum characters of it that are used."""

_caller: ContextVar[str] = ContextVar("headrace-caller", default="")


def note_caller(context: Any) -> None:
    """Record the caller of the current call: as named by its gateway, else its connection."""
    named = dict(context.invocation_metadata() or ()).get(METADATA_KEY) or context.peer()
    _caller.set(str(named)[:MAX_CALLER])


def caller() -> str:
    """Return the caller of the current call; "" in process."""
    return _caller.get()
