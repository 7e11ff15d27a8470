"""The caller of a call: the party whose share of common limits it counts against, and whether it may name owners."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from headrace_proto.pure.tracing import HEADER, is_traceparent
from headrace_proto.server.traces import note_trace

from headrace_engine.errors import FieldViolation, InvalidArgument, PermissionDenied
from headrace_engine.request_types import OwnerLimit, OwnerLimits

METADATA_KEY = "headrace-caller"
"""Metadata by which a gateway identifies its clients' connections. Trusted from any peer, but for shares alone."""

MAX_CALLER = 64
"""Maximum characters of it that are used."""

PROMPT_KEYS = "headrace-prompt-keys"
"""Metadata by which a gateway asks for the keys of a prompt's blocks."""

OWNER_LIMITS = "headrace-owner-limits"
"""Metadata by which a gateway sends the limits of a start's owner: "key=NAME", and "LIMIT=MOST:ELSEWHERE" for each,
with spaces between them. Elsewhere: what the owner has on other engines. Believed from any peer: they restrict it."""

_limits: ContextVar[str] = ContextVar(OWNER_LIMITS, default="")
_MAX_LIMITS = 512
_wants_keys: ContextVar[bool] = ContextVar(PROMPT_KEYS, default=False)
_caller: ContextVar[str] = ContextVar("headrace-caller", default="")
_trace: ContextVar[str] = ContextVar(HEADER, default="")
_trusted: ContextVar[bool] = ContextVar("headrace-trusted", default=True)


def note_caller(context: Any, *, trusted: bool) -> None:
    """Record the caller of the current call, as named by its gateway, else its connection; and what it asks for.

    Args:
        context: of the call.
        trusted: it may name the owner of a request.
    """
    _trusted.set(trusted)
    metadata = dict(context.invocation_metadata() or ())
    _caller.set(str(metadata.get(METADATA_KEY) or context.peer())[:MAX_CALLER])
    _wants_keys.set(PROMPT_KEYS in metadata)
    _limits.set(str(metadata.get(OWNER_LIMITS, "")))
    sent = metadata.get(HEADER)
    _trace.set(str(sent) if is_traceparent(sent) else "")
    note_trace(metadata)


def caller() -> str:
    """Return the caller of the current call; "" in process."""
    return _caller.get()


def trace() -> str:
    """Return the trace context of the current call; "" if it has none."""
    return _trace.get()


def wants_prompt_keys() -> bool:
    """True if the caller asks for the keys of a prompt's blocks."""
    return _wants_keys.get()


def owner_limits() -> OwnerLimits | None:
    """Return the limits that came with the current call; None: there are none.

    Raises:
        InvalidArgument: they are malformed: a limit that is left out would not hold.
    """
    text = _limits.get()
    if not text:
        return None
    parts = dict(part.partition("=")[::2] for part in text[:_MAX_LIMITS].split())
    try:
        key = parts.pop("key")
        return OwnerLimits(key, **{name: OwnerLimit(*map(int, value.split(":"))) for name, value in parts.items()})
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument(f"metadata {OWNER_LIMITS} is malformed") from None


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
