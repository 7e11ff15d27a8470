"""Streams of events over connections of HTTP, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvicorn
from headrace_gateway.http.bodies import Bodies
from headrace_gateway.http.callers import Caller
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.protocol import BoundedProtocol
from headrace_gateway.http.templates import PLACE, Template, event_of
from headrace_proto.pure.host_shares import HostShares
from starlette.requests import Request
from support.clocks.waiting import ends, eventually
from uvicorn.server import ServerState

PIECE = "x" * 100_000


class Source:
    """Gives pieces on to whoever takes them, each when `give` is called."""

    def __init__(self) -> None:
        self.taken = 0
        self._take: Callable[[str], bool] | None = None
        self._over = asyncio.Event()
        self._ended = False

    def give(self, piece: str) -> bool:
        """Gives a piece on, if somebody takes one."""
        if self._take is None:
            return False
        self.taken += 1
        if not self._take(piece):
            self._take = None
            self._over.set()
        return True

    def end(self) -> None:
        """Has ended."""
        self._ended = True
        self._over.set()

    async def pass_on(self, take: Callable[[str], bool]) -> bool:
        """As of queues."""
        self._take = take
        self._over.clear()
        await self._over.wait()
        return self._ended


def event(piece: str) -> bytes:
    return event_of({"text": piece})


@asynccontextmanager
async def serving(answer: Callable[[Exchange], Awaitable[None]]) -> Any:
    """Answers every request so; yields a function that opens a connection and sends one."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        await request.body()
        await answer(Exchange(request, Caller("ipv4:127.0.0.1:1"), send, Bodies()))

    config, state = uvicorn.Config(application, ws="none", lifespan="off", log_config=None), ServerState()
    config.load()

    def connection() -> BoundedProtocol:
        return BoundedProtocol(HostShares(10), config=config, server_state=state, app_state={})

    listening = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    writers = []

    async def ask(method: str = "GET") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writers.append(writer)
        writer.write(f"{method} / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        return reader, writer

    async with listening:
        yield ask
        for writer in writers:
            writer.transport.abort()


async def chunk(reader: asyncio.StreamReader) -> bytes:
    """The next chunk of an answer."""
    async with ends("no chunk comes"):
        size = int(await reader.readline(), 16)
        return (await reader.readexactly(size + 2))[:-2]


async def test_each_event_is_sent_when_it_is_given() -> None:
    source = Source()

    async def answer(exchange: Exchange) -> None:
        await exchange.begin_events()
        await exchange.relay(source, event)
        await exchange.end_events(b"data: [DONE]\n\n")

    async with serving(answer) as ask:
        reader, _ = await ask()
        async with ends("the answer does not begin"):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        for piece in ("one", "zw\N{LATIN SMALL LETTER O WITH DIAERESIS}lf", '"\n'):
            await eventually(lambda piece=piece: source.give(piece), "nobody takes a piece")  # type: ignore[misc]
            assert await chunk(reader) == event(piece)
        source.end()
        assert await chunk(reader) == b"data: [DONE]\n\n"
        assert await chunk(reader) == b""
        async with ends("the connection stays open"):
            assert await reader.read() == b""


async def test_nothing_is_taken_for_a_caller_that_does_not_read() -> None:
    """It gets everything once it reads again."""
    source = Source()

    async def answer(exchange: Exchange) -> None:
        await exchange.begin_events()
        await exchange.relay(source, event)
        await exchange.end_events()

    async with serving(answer) as ask:
        reader, writer = await ask()
        async with ends("the answer does not begin"):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await eventually(lambda: not source.give(PIECE) and source.taken > 0, "everything is taken")
        given = source.taken
        assert not source.give(PIECE)
        writer.transport.resume_reading()
        for _ in range(given):
            assert await chunk(reader) == event(PIECE)
        await eventually(lambda: source.give("last"), "nobody takes a piece")
        assert await chunk(reader) == event("last")
        source.end()
        assert await chunk(reader) == b""


async def test_a_caller_that_has_left_is_written_nothing() -> None:
    source, left = Source(), asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        try:
            async with exchange.attended():
                await exchange.begin_events()
                await exchange.relay(source, event)
        finally:
            if exchange.left:
                left.set()

    async with serving(answer) as ask:
        reader, writer = await ask()
        async with ends("the answer does not begin"):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        async with ends("it is not noticed"):
            await left.wait()
        assert source.give("late")


async def test_an_answer_to_head_has_no_events() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.begin_events()
        await exchange.event({"text": "one"})
        await exchange.end_events()

    async with serving(answer) as ask:
        reader, _ = await ask("HEAD")
        async with ends("the answer does not end"):
            assert (await reader.read()).endswith(b"\r\n\r\n")


@pytest.mark.parametrize("text", ["plain", '"quoted"\\\n', "\N{GRINNING FACE}\u2028", pytest.param(PLACE, id="place")])
def test_a_template_is_the_event_with_its_text(text: str) -> None:
    class Chunk(msgspec.Struct):
        id: str
        text: str
        more: list[int]

    template = Template(Chunk("a", PLACE, [1]), "delta")
    assert template.event(text) == event_of(Chunk("a", text, [1]), "delta")
    assert template.event("") == event_of(Chunk("a", "", [1]), "delta")
