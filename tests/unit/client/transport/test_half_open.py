"""Connections over which nothing comes any more, and which nobody closes."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from headrace import AsyncClient, Client
from headrace._api import aio_calls, start_calls
from headrace._transport import grpc_channels
from headrace_proto.v1 import engine_service_pb2
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import LIMIT
from support.scripted.replies import Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended, tokens
from support.servers.cut_proxy import cut_proxy
from unit.client.api.test_client import RELEASED

IDS = list(range(30))
QUICKLY = {"grpc.keepalive_time_ms": 300, "grpc.http2.ping_timeout_ms": 300}


def test_bc164_a_client_survives_a_half_open_connection(
    server: ScriptedServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of the old connection go nowhere, both ways; keepalive, hurried here, finds that out."""
    options = tuple((dict(grpc_channels.CHANNEL_OPTIONS) | QUICKLY).items())
    monkeypatch.setattr(grpc_channels, "CHANNEL_OPTIONS", options)
    with cut_proxy(server.address) as proxy, closing(Client(proxy.address, clock=clock)) as client:
        server.expect("StartRequest", accepted("e1/i1/1"))
        server.expect("GeneratedElements", [tokens(IDS, 0, 7), Hang()])
        queue = client.start_request("smol", "Hello")[1]
        assert queue.Get() is not None
        proxy.strand()
        server.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
        clock.run()
        assert [token for elements in queue for token in elements.ids_from_generate] == IDS[7:]
        server.expect("GetServerInfo", engine_service_pb2.GetServerInfoResponse(name="e1"))
        assert client.server_info().name == "e1"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that leave wait for less long before they connect again, and longer then."""
    for module in (start_calls, aio_calls):
        monkeypatch.setattr(module, "SILENT_AFTER", 0.2)
        monkeypatch.setattr(module, "RELEASE_TIMEOUT", LIMIT)


def held(server: ScriptedServer, count: int) -> list[str]:
    """Script requests that go on; return their handles."""
    handles = [f"e1/i1/{number}" for number in range(count)]
    server.expect("StartRequest", *map(accepted, handles))
    for handle in handles:
        server.expect("GeneratedElements", [Hang()], when=lambda request, handle=handle: request.handle == handle)
    return handles


@pytest.mark.usefixtures("impatient")
def test_bc164_leaving_over_a_half_open_connection_releases(server: ScriptedServer, clock: FakeClock) -> None:
    """Over a new connection, since nothing is answered over the present one."""
    handles = held(server, 1)
    server.expect("ReleaseRequest", RELEASED)
    with cut_proxy(server.address) as proxy, Client(proxy.address, clock=clock) as client:
        client.start_request("smol", "Hello")
        server.wait_for_streams(1)
        proxy.strand()
    assert [one.handle for one in server.requests("ReleaseRequest")] == handles


@pytest.mark.usefixtures("impatient")
async def test_bc164_leaving_a_loop_client_half_open_releases(server: ScriptedServer) -> None:
    handles = held(server, 1)
    server.expect("ReleaseRequest", RELEASED)
    with cut_proxy(server.address) as proxy:
        async with AsyncClient(proxy.address) as client:
            await client.start_request("smol", "Hello")
            await asyncio.to_thread(server.wait_for_streams, 1)
            proxy.strand()
    assert [one.handle for one in server.requests("ReleaseRequest")] == handles


def test_bc164_leaving_ends_though_nothing_is_answered(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start_calls, "SILENT_AFTER", 0.2)
    monkeypatch.setattr(start_calls, "RELEASE_TIMEOUT", 0.4)
    server.hold("ReleaseRequest")
    handles = held(server, 3)
    with cut_proxy(server.address) as proxy, Client(proxy.address) as client:
        for _ in handles:
            client.start_request("smol", "Hello")
        server.wait_for_streams(3)
        proxy.swallow()
    assert len([text for text in caplog.messages if "could not release the remaining requests" in text]) == 1
