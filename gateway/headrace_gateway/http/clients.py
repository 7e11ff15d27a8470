"""The clients by which HTTP calls the gateway's own services: one for each API key, as a session has one owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import AsyncClient, RetryPolicy

from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.http.transport import OwnServices

_PATIENCE = RetryPolicy(give_up_after=5.0)
"""Callers of HTTP retry by themselves, and would rather know."""


class Clients:
    """Opens a client with the first call of a key, and keeps it. Without keys there is one.

    Args:
        servicers: of the gateway, by the full name of their service.
        access: which calls a caller may make.
    """

    def __init__(self, servicers: Mapping[str, Any], access: Access) -> None:
        self._servicers = servicers
        self._access = access
        self._open: dict[bytes, tuple[OwnServices, AsyncClient]] = {}

    @property
    def current(self) -> AsyncClient:
        """The client of the current caller."""
        return self._of_caller()[1]

    @property
    def services(self) -> OwnServices:
        """The gateway's services, called for the current caller."""
        return self._of_caller()[0]

    async def close(self) -> None:
        """Close all clients."""
        for _, client in self._open.values():
            await client.close()

    def _of_caller(self) -> tuple[OwnServices, AsyncClient]:
        caller = callers.current()
        name = b"" if caller.key is None else caller.key.digest
        if name not in self._open:
            services = OwnServices(self._servicers, self._access)
            self._open[name] = services, AsyncClient(services, retry=_PATIENCE)
        services, client = self._open[name]
        services.caller = caller  # What a key allows may have changed.
        return services, client
