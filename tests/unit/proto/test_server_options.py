"""What gRPC does with connections that bring nothing, by the options of both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import grpc
import pytest
from headrace_proto.server.options import SERVER_OPTIONS
from support.clocks.waiting import ends

Connect = Callable[[], Awaitable[asyncio.StreamReader]]


@pytest.fixture
async def listening() -> AsyncIterator[Callable[..., Awaitable[Connect]]]:
    """Starts a server with other values of some options; gives what opens a connection and sends nothing."""
    async with AsyncExitStack() as stack:

        async def start(**options: int) -> Connect:
            changed = {f"grpc.{name}": value for name, value in options.items()}
            assert changed.keys() <= dict(SERVER_OPTIONS).keys()
            server = grpc.aio.server(options=list({**dict(SERVER_OPTIONS), **changed}.items()))
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, None)

            async def connect() -> asyncio.StreamReader:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                stack.callback(writer.close)
                return reader

            return connect

        yield start


async def test_a_silent_connection_is_closed(listening) -> None:
    connect = await listening(server_handshake_timeout_ms=100)
    reader = await connect()
    async with ends("the connection stays open"):
        while await reader.read(1000):  # its settings come first
            pass


async def test_connections_beyond_the_limit_are_closed_at_once(listening) -> None:
    connect = await listening(max_allowed_incoming_connections=3)
    kept = [await connect() for _ in range(3)]
    for reader in kept:
        async with ends("no settings came"):
            assert await reader.read(1000)
    beyond = await connect()
    async with ends("the connection stays open"):
        assert await beyond.read(1000) == b""
    assert not any(reader.at_eof() for reader in kept)
