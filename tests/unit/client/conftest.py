"""A scripted server, and a client of it whose time stands still."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headrace import Client
from support.clocks.client_clock import FakeClock
from support.scripted.server import ScriptedServer


@pytest.fixture(params=["session", "streams"])
def path(request: pytest.FixtureRequest) -> str:
    """How results come: over the client's session, or where there is none, over a stream for each queue."""
    return str(request.param)


@pytest.fixture
def server(path: str) -> Iterator[ScriptedServer]:
    """Fails the test where it was asked what was not scripted, or was not asked what was."""
    server = ScriptedServer(sessions=path == "session").start()
    yield server
    server.stop()
    server.check()


@pytest.fixture
def clock() -> FakeClock:
    """Time for the client."""
    return FakeClock()


@pytest.fixture
def client(server: ScriptedServer, clock: FakeClock) -> Iterator[Client]:
    """A client of the scripted server; closed, not left, so that nothing is released behind the test's back.

    It hands nothing over: `api/test_handover.py` does.
    """
    client = Client(server.address, clock=clock, handover=False)
    yield client
    client.close()
