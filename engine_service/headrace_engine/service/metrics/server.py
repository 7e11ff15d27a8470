"""`GET /metrics` of an engine: the whole of an HTTP server that answers one question."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from headrace_proto.pure.addresses import Address
from headrace_proto.pure.host_shares import host_of
from headrace_proto.pure.shares import Shares
from headrace_proto.server.listening import ListenError, check_free
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace_engine.engine.engine import Engine
from headrace_engine.service.metrics.families import families
from headrace_engine.service.metrics.vllm_names import vllm_families

MOST_CONNECTIONS = 64
"""Connections at once, shared by hosts; others are closed."""

LONGEST_HEAD = 16 << 10
"""Maximum bytes of a request."""

PATIENCE = 10.0
"""Seconds for a request, and for its answer to be taken."""

_TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """Answers Prometheus over HTTP, in the engine's event loop. It answers everyone who connects.

    Args:
        engine: what is measured.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._shares: Shares[str] = Shares(MOST_CONNECTIONS)

    async def listen(self, address: Address) -> Address:
        """Listen, and serve from now on. Return the address with the real port.

        Raises:
            ListenError: the address is in use, or not one of this machine.
        """
        check_free(address)
        try:
            self._server = await asyncio.start_server(self._connected, address.host, address.port, limit=LONGEST_HEAD)
        except OSError as error:
            raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from None
        return replace(address, port=self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is None:
            return
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, host = asyncio.current_task(), _host_of(writer)
        if task is None or not self._shares.can_take(host):
            writer.close()
            return
        self._open.add(task)
        answered = False
        try:
            with self._shares.holding(host):
                async with asyncio.timeout(PATIENCE):
                    await self._answer(reader, writer)
            answered = True
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # A caller that goes away, is slow, or sends something else, costs itself its answer.
        finally:
            self._open.discard(task)
            if answered:
                writer.close()
            else:
                writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            writer.write(_message("404 Not Found", _TEXT, b"There is /metrics alone.\n"))
        elif method not in (b"GET", b"HEAD"):
            writer.write(_message("405 Method Not Allowed", _TEXT, b"There is GET alone.\n"))
        else:
            answer = _message("200 OK", CONTENT_TYPE_LATEST, self._text())
            writer.write(answer if method == b"GET" else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        await writer.drain()

    def _text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Engine(self._engine))
        return generate_latest(registry)


class _Engine(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        models = self._engine.measured()
        yield from families(self._engine.server_info(), models)
        yield from vllm_families(models)


def _host_of(writer: asyncio.StreamWriter) -> str:
    host, port, *_ = writer.get_extra_info("peername") or ("", 0)
    return host_of(f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}")


def _message(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body
