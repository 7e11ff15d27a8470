"""An asynchronous client of the scripted server, whose time stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from headrace import AsyncClient
from support.clocks.async_clock import FakeAsyncClock
from support.scripted.server import ScriptedServer


@pytest.fixture
def clock() -> FakeAsyncClock:
    """Time for the client."""
    return FakeAsyncClock()


@pytest.fixture
async def client(server: ScriptedServer, clock: FakeAsyncClock) -> AsyncIterator[AsyncClient]:
    """Closed, not left, so that nothing is released behind the test's back."""
    client = AsyncClient(server.address, clock=clock)
    yield client
    await client.close()
