"""A scripted server, and a client of it whose time stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace import Client
from scripted_server import FakeClock, ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Fails the test where it was asked what was not scripted, or was not asked what was."""
    server = ScriptedServer().start()
    yield server
    server.stop()
    server.check()


@pytest.fixture
def clock() -> FakeClock:
    """Time for the client."""
    return FakeClock()


@pytest.fixture
def client(server: ScriptedServer, clock: FakeClock) -> Iterator[Client]:
    """A client of the scripted server; closed, not left, so that nothing is released behind the test's back."""
    client = Client(server.address, clock=clock)
    yield client
    client.close()
