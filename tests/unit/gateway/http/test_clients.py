"""The clients by which HTTP calls the gateway's own services are open while they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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


def opened(monkeypatch: pytest.MonkeyPatch, **limits: float) -> tuple[Clients, list[str]]:
    """Clients, and which of them were closed, by the name of their key."""
    for name, value in limits.items():
        monkeypatch.setattr(clients, name, value)
    gone: list[str] = []

    class Noted(AsyncClient):
        def __init__(self, services: Any, **more: Any) -> None:
            self.services = services
            super().__init__(services, **more)

        async def close(self) -> None:
            gone.append(self.services.caller.owner)
            await super().close()

    monkeypatch.setattr(clients, "AsyncClient", Noted)
    return Clients({}, Access()), gone


async def test_idle_clients_beyond_a_number_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = opened(monkeypatch, MOST_IDLE=2)
    first = await used(kept, "a")
    await used(kept, "b")
    assert await used(kept, "a") is first
    await used(kept, "c")
    async with ends("none is closed"):
        while not gone:
            await asyncio.sleep(0)
    assert gone == ["b"]
    assert await used(kept, "a") is first
    await kept.close()
    assert sorted(gone) == ["a", "b", "c"]


async def test_a_client_in_use_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = opened(monkeypatch, MOST_IDLE=1)
    over = asyncio.Event()
    busy = asyncio.create_task(used(kept, "busy", over))
    callers.note(Caller(ApiKey("held", b"held", "held")))
    let_go = kept.hold()
    for name in "abc":
        await used(kept, name)
    over.set()
    await busy
    async with ends("the others are not closed"):
        while len(gone) < 3:
            await asyncio.sleep(0)
    assert sorted(gone) == ["a", "b", "c"]
    let_go()
    await kept.close()


async def test_a_client_is_closed_some_time_after_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = opened(monkeypatch, IDLE_SECONDS=0.01)
    first = await used(kept, "a")
    async with ends("it is not closed"):
        while not gone:
            await asyncio.sleep(0.001)
    assert await used(kept, "a") is not first
    await kept.close()
    assert gone == ["a", "a"]
