"""Connections of HTTP within their limits, to a gateway in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from headrace_gateway.access.access import Access
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http import protocol
from headrace_gateway.http.server import HttpServer
from headrace_proto.pure.addresses import Address
from headrace_proto.pure.host_shares import HostShares
from support.clocks.waiting import ends
from uvicorn.server import ServerState

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    """Where a server without services listens."""
    server = HttpServer(Address("127.0.0.1", 0), {}, LiveCalls(), Access(), None, lambda: False)
    await server.start()
    yield server.address
    await server.close()


class Peer:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        """Send bytes, and return the status line of the answer, after its head and body."""
        self.writer.write(data)
        async with ends("no answer comes"):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await self.reader.readexactly(int(length.split(b":")[1]))
        return head.split(b"\r\n")[0]

    async def ended(self) -> bytes:
        """Wait until the server closes the connection; return what it sent before."""
        async with ends("the connection stays open"):
            return await self.reader.read()


@pytest.fixture
async def connect(address: Address) -> AsyncIterator[Any]:
    peers = []

    async def begin() -> Peer:
        peers.append(Peer(*await asyncio.open_connection(address.host, address.port)))
        return peers[-1]

    yield begin
    for peer in peers:
        peer.writer.close()
        await asyncio.gather(peer.writer.wait_closed(), return_exceptions=True)


async def test_silent_connections_leave_room_for_others(connect: Any) -> None:
    for _ in range(70):
        await connect()
    assert await (await connect()).ask(GET) == b"HTTP/1.1 200 OK"


async def test_a_host_beyond_its_share_is_refused(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostShares, "can_take", lambda self, peer, count=1: self.taken < 2)
    first = await connect()
    assert await first.ask(GET) == b"HTTP/1.1 200 OK"
    second = await connect()
    assert await second.ask(GET) == b"HTTP/1.1 200 OK"
    refused = await (await connect()).ended()
    assert refused.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after" in refused
    first.writer.close()
    await first.writer.wait_closed()
    async with ends("the place is not free again"):
        while not (await (await connect()).ask(GET)).startswith(b"HTTP/1.1 200"):
            pass


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"])
async def test_headers_that_do_not_come_end_the_connection(
    connect: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.01)
    peer = await connect()
    peer.writer.write(sent)
    assert await peer.ended() == b""


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /heal"])
async def test_so_it_is_between_two_requests(connect: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    peer = await connect()
    await peer.ask(GET)
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.01)
    if sent:
        peer.writer.write(sent)
        assert await peer.ended() == b""
    else:
        assert await peer.ask(GET) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "data",
    [
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 100) for n in range(400)) + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nx: " + b"y" * (protocol.MAX_HEADER_BYTES + 1),
        b"GET /" + b"y" * (protocol.MAX_HEADER_BYTES + 1),
    ],
)
async def test_headers_beyond_the_limit_are_refused(connect: Any, data: bytes) -> None:
    peer = await connect()
    peer.writer.write(data)
    assert (await peer.ended()).startswith(b"HTTP/1.1 431 ")


async def test_what_is_no_http_is_refused(connect: Any) -> None:
    peer = await connect()
    peer.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert (await peer.ended()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /nothing", b"HTTP/1.1 404 Not Found"),
        (b"GET /v1/chat/completions", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET /readyz", b"HTTP/1.1 503 Service Unavailable"),
    ],
)
async def test_other_routes_are_answered(connect: Any, line: bytes, status: bytes) -> None:
    assert await (await connect()).ask(line + b" HTTP/1.1\r\nhost: localhost\r\n\r\n") == status


async def test_a_peer_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is much more than the buffers of both ends take."""
    monkeypatch.setattr(protocol, "STALL_SECONDS", 0.05)
    cut = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watching = asyncio.create_task(receive())
        await asyncio.wait([watching])
        watching = asyncio.create_task(receive())
        while not watching.done():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)
        cut.set()

    config, state = uvicorn.Config(endless, ws="none", lifespan="off", log_config=None), ServerState()
    config.load()

    def connection() -> protocol.BoundedProtocol:
        return protocol.BoundedProtocol(HostShares(10), config=config, server_state=state, app_state={})

    listening = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    async with listening:
        _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET)
        async with ends("the connection is not cut"):
            await cut.wait()
        writer.transport.abort()


async def test_a_request_sent_before_an_answer_is_not_kept(connect: Any) -> None:
    """Of many in one message, the first is answered, and the connection ends."""
    peer = await connect()
    peer.writer.write(GET * 1000)
    answered = await peer.ended()
    assert answered.count(b"HTTP/1.1 ") == 1
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in answered


@pytest.mark.parametrize("cut", [1, 3])
async def test_a_change_of_protocol_that_is_asked_for_is_not_made(connect: Any, cut: int) -> None:
    """Java's client asks so for HTTP/2, with the body of its request behind."""
    peer, body = await connect(), b'{"model": 3}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        % len(body)
    )
    sent = head + b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABk\r\nupgrade: h2c\r\n\r\n" + body
    for number in range(cut):
        peer.writer.write(sent[len(sent) * number // cut : len(sent) * (number + 1) // cut])
        await peer.writer.drain()
    async with ends("no answer comes"):
        head = await peer.reader.readuntil(b"\r\n\r\n")
        answer = await peer.reader.readuntil(b"}}")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b'"param":"model"' in answer
    assert await peer.ask(GET) == b"HTTP/1.1 200 OK"
