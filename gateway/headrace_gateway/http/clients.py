"""The clients by which HTTP calls the gateway's own services: one for each API key, as a session has one owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace import AsyncClient, RetryPolicy
from headrace_proto.pure.quiet_names import QuietNames

from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.http.adapters import Adapters
from headrace_gateway.http.transport import OwnServices

IDLE_SECONDS = 60.0
"""Seconds after its last use for which a client stays open."""

MOST_IDLE = 256
"""Maximum clients without use that stay open."""

_PATIENCE = RetryPolicy(give_up_after=5.0)
"""Callers of HTTP retry by themselves, and would rather know."""


@dataclass(eq=False, slots=True)
class _Open:
    """An open client.

    Attributes:
        users: what needs it: tasks that asked for it, until they are done, and what holds it.
        since: time since which it has none.
        timer: looks whether it is still needed; None: it has users, or has had none.
    """

    services: OwnServices
    client: AsyncClient
    adapters: Adapters
    users: set[object] = field(default_factory=set)
    since: float = 0.0
    timer: asyncio.TimerHandle | None = None


class Clients:
    """Opens a client with the first call of a key, and closes it once no call has needed it for a while. Without keys
    there is one.

    Args:
        servicers: of the gateway, by the full name of their service.
        access: which calls a caller may make.
    """

    def __init__(self, servicers: Mapping[str, Any], access: Access) -> None:
        self._servicers = servicers
        self._access = access
        self._open: dict[bytes, _Open] = {}
        self._idle: QuietNames[bytes] = QuietNames(MOST_IDLE)
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def current(self) -> AsyncClient:
        """The client of the current caller. It stays open until the current task is done."""
        return self._of_caller().client

    @property
    def adapters(self) -> Adapters:
        """The models and adapters that names mean for the current caller."""
        return self._of_caller().adapters

    @property
    def services(self) -> OwnServices:
        """The gateway's services, called for the current caller, until the current task is done."""
        return self._of_caller().services

    def hold(self) -> Callable[[], None]:
        """Keep the client of the current caller open, until what is returned is called."""
        name, holder = _name(), object()
        held = self._of_caller()
        self._use(name, held, holder)
        return lambda: self._leave(name, held, holder)

    async def close(self) -> None:
        """Close all clients."""
        for name in list(self._open):
            self._close(name)
        await asyncio.gather(*self._closing)

    def _of_caller(self) -> _Open:
        name = _name()
        if name not in self._open:
            services = OwnServices(self._servicers, self._access)
            client = AsyncClient(services, retry=_PATIENCE)
            self._open[name] = _Open(services, client, Adapters(client))
        found = self._open[name]
        found.services.caller = callers.current()  # What a key allows may have changed.
        task = asyncio.current_task()
        if task is not None and task not in found.users:
            self._use(name, found, task)
            task.add_done_callback(lambda _: self._leave(name, found, task))
        return found

    def _use(self, name: bytes, used: _Open, user: object) -> None:
        used.users.add(user)
        self._idle.used(name)

    def _leave(self, name: bytes, used: _Open, user: object) -> None:
        used.users.discard(user)
        if used.users or self._open.get(name) is not used:
            return
        loop = asyncio.get_running_loop()
        used.since = loop.time()
        if used.timer is None:
            used.timer = loop.call_later(IDLE_SECONDS, self._look, name, used)
        if (forgotten := self._idle.unused(name)) is not None:
            self._close(forgotten)

    def _look(self, name: bytes, used: _Open) -> None:
        """Close a client that has not been used for long enough; else look again when it may be."""
        used.timer = None
        if used.users:
            return
        loop = asyncio.get_running_loop()
        left = used.since + IDLE_SECONDS - loop.time()
        if left > 0:
            used.timer = loop.call_later(left, self._look, name, used)
        else:
            self._close(name)

    def _close(self, name: bytes) -> None:
        closed = self._open.pop(name)
        self._idle.used(name)
        if closed.timer is not None:
            closed.timer.cancel()
        task = asyncio.create_task(closed.client.close(), name="headrace-http-client-closes")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _name() -> bytes:
    key = callers.current().key
    return b"" if key is None else key.digest
