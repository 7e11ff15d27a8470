"""The clients by which HTTP calls the gateway's own services are open while they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from headrace import AsyncClient
from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.access.api_keys import ApiKey
from headrace_gateway.access.callers import Caller
from headrace_gateway.http import clients
from headrace_gateway.http.clients import Clients
from support.clocks.waiting import ends


@pytest.fixture(autouse=True)
def _nobody() -> Iterator[None]:
    yield
    callers.note(callers.ANYONE)


async def used(kept: Clients, name: str, until: asyncio.Event | None = None) -> AsyncClient:
    """What a task with a key was given; it runs until an event."""

    async def ask() -> AsyncClient:
        callers.note(Caller(ApiKey(name, name.encode(), name)))
        found = kept.current
        if until is not None:
            await until.wait()
        assert kept.current is found
        return found

    return await asyncio.create_task(ask())


async def held(kept: Clients, name: str) -> Callable[[], None]:
    """Lets go of the client that a task with a key has held, and that no task uses any more."""

    async def hold() -> Callable[[], None]:
        callers.note(Caller(ApiKey(name, name.encode(), name)))
        return kept.hold()

    return await asyncio.create_task(hold())


async def taken(gone: asyncio.Queue[str], count: int) -> list[str]:
    """Which clients are closed next, by the name of their key."""
    async with ends("they are not closed"):
        return sorted([await gone.get() for _ in range(count)])


def opened(monkeypatch: pytest.MonkeyPatch, **limits: float) -> tuple[Clients, asyncio.Queue[str]]:
    """Clients, and those that are closed."""
    for name, value in limits.items():
        monkeypatch.setattr(clients, name, value)
    gone: asyncio.Queue[str] = asyncio.Queue()

    class Noted(AsyncClient):
        def __init__(self, services: Any, **more: Any) -> None:
            self.services = services
            super().__init__(services, **more)

        async def close(self) -> None:
            gone.put_nowait(self.services.caller.owner)
            await super().close()

    monkeypatch.setattr(clients, "AsyncClient", Noted)
    return Clients({}, Access()), gone


async def test_idle_clients_beyond_a_number_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = opened(monkeypatch, MOST_IDLE=2)
    first = await used(kept, "a")
    await used(kept, "b")
    assert await used(kept, "a") is first
    await used(kept, "c")
    assert await taken(gone, 1) == ["b"]
    assert await used(kept, "a") is first
    await kept.close()
    assert await taken(gone, 2) == ["a", "c"]
    assert gone.empty()


async def test_a_client_in_use_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = opened(monkeypatch, MOST_IDLE=1)
    over = asyncio.Event()
    busy = asyncio.create_task(used(kept, "busy", over))
    let_go = await held(kept, "held")
    for name in "abc":
        await used(kept, name)
    over.set()
    await busy
    assert await taken(gone, 3) == ["a", "b", "c"]
    let_go()
    assert await taken(gone, 1) == ["busy"]
    await kept.close()
    assert await taken(gone, 1) == ["held"]


async def test_a_client_is_closed_some_time_after_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = opened(monkeypatch, IDLE_SECONDS=0.01)
    first = await used(kept, "a")
    assert await taken(gone, 1) == ["a"]
    assert await used(kept, "a") is not first
    await kept.close()
