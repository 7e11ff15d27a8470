"""Who makes an HTTP request, and where authentication has its place."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from headrace_gateway.forwarding.forward import PASSED_METADATA


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of one HTTP request.

    Attributes:
        peer: its end of the connection, written as gRPC does; shares of hosts and connections count by it.
        metadata: headers that engines are given too: the API key and the trace context.
        owner: whose requests they are; "" without API keys.
    """

    peer: str
    metadata: tuple[tuple[str, str], ...] = ()
    owner: str = ""


ITSELF = Caller("http:gateway")
"""The caller of what belongs to no HTTP request: the session, and hand-overs."""

CALLER: ContextVar[Caller] = ContextVar("caller", default=ITSELF)
"""The caller of the task in which a call is made. Tasks inherit it from the task that creates them."""


def owner_of(headers: Mapping[str, str]) -> str:
    """Return the owner that a request's headers prove. The one place to authenticate callers of HTTP.

    Without API keys all callers are the owner "", and what they send as a key means nothing.
    """
    return ""


def peer_of(client: tuple[str, int] | None) -> str:
    """Return the other end of a connection, written as gRPC does."""
    host, port = client or ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def caller_of(scope: Mapping[str, Any], headers: Mapping[str, str]) -> Caller:
    """Return the caller of an ASGI request."""
    passed = tuple((name, headers[name]) for name in sorted(PASSED_METADATA) if name in headers)
    return Caller(peer_of(scope.get("client")), passed, owner_of(headers))
