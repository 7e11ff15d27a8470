"""The connection and headers of an HTTP request, as its calls need them."""

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
        metadata: headers that engines are given too: the trace context.
    """

    peer: str
    metadata: tuple[tuple[str, str], ...] = ()


ITSELF = Caller("http:gateway")
"""The caller of what belongs to no HTTP request: the session, and hand-overs."""

CALLER: ContextVar[Caller] = ContextVar("caller", default=ITSELF)
"""The caller of the task in which a call is made. Tasks inherit it from the task that creates them."""


def credentials_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that prove who calls, as `Access.caller` reads them. Anthropic's clients send `x-api-key`."""
    sent = headers.get("authorization")
    if sent is None and (key := headers.get("x-api-key")) is not None:
        sent = f"Bearer {key}"
    return {} if sent is None else {"authorization": sent}


def peer_of(client: tuple[str, int] | None) -> str:
    """Return the other end of a connection, written as gRPC does."""
    host, port = client or ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def caller_of(scope: Mapping[str, Any], headers: Mapping[str, str]) -> Caller:
    """Return the caller of an ASGI request."""
    passed = tuple((name, headers[name]) for name in sorted(PASSED_METADATA) if name in headers)
    return Caller(peer_of(scope.get("client")), passed)
