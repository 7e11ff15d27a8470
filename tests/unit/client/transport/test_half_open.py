"""Connections over which nothing comes any more, and which nobody closes."""

from __future__ import annotations

from contextlib import closing

import pytest
from headrace import Client
from headrace._transport import grpc_channels
from headrace_proto.v1 import engine_service_pb2
from support.clocks.client_clock import FakeClock
from support.scripted.replies import Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended, tokens
from support.servers.cut_proxy import cut_proxy

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
