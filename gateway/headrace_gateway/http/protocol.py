"""Connections of HTTP: uvicorn's, bounded in number, in the size of headers, and in patience with slow peers."""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

import httptools
from headrace_proto.pure.host_shares import HostShares
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace_gateway.http.callers import peer_of

MAX_CONNECTIONS = 4096
"""Maximum connections at a time, and at most half of the files that the process may open."""

MAX_HEADER_BYTES = 32 << 10
"""Maximum bytes of a request before its body."""

HEADER_SECONDS = 30.0
"""Seconds in which a request's headers must arrive, from the connection's beginning on."""

IDLE_SECONDS = 75
"""Seconds that a connection may be idle between two requests."""

STALL_SECONDS = 60.0
"""Seconds for which a caller may leave more than 64 KiB of an answer unread; then its connection is cut."""

CONNECTION = "headrace.connection"
"""Key of a request's scope: its `BoundedProtocol`."""

_FULL = (429, "Too Many Requests", "this host has too many connections to the gateway: close some")
_TOO_LARGE = (431, "Request Header Fields Too Large", f"the headers of a request have {MAX_HEADER_BYTES} bytes at most")


def connection_shares() -> HostShares:
    """Return the shares of connections, by host."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostShares(MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2))


class BoundedProtocol(HttpToolsProtocol):
    """One connection. What exceeds a limit is answered in one line, and the connection closed.

    Args:
        shares: of connections, by host.
        given: arguments of uvicorn's protocol.
    """

    def __init__(self, shares: HostShares, **given: Any) -> None:
        super().__init__(**given)
        self._shares = shares
        self._peer = ""
        self._in_headers = True
        self._over = False  # Nothing is read any more.
        self._data = b""
        self._received = self._fields = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, within the share of the peer's host."""
        super().connection_made(transport)
        peer = peer_of(self.client)
        if not self._shares.can_take(peer):
            self._refuse(*_FULL)
            return
        self._peer = peer
        self._shares.take(peer)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._peer:
            self._shares.give_back(self._peer)
        self._peer = ""
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of headers within their limit."""
        if self._over or self.transport.is_closing():
            return
        if self._in_headers:
            self._received += len(data)
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._in_headers and self._received > MAX_HEADER_BYTES:
            self._refuse(*_TOO_LARGE)
        elif self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()  # It sent something between two requests, which ends uvicorn's own timer.

    def on_message_begin(self) -> None:
        """Begin a request, or the next one of its connection.

        A request sent before the answer to the one before is not served: the connection ends with that answer, after
        which clients send again what was not answered. Requests that wait would take memory without a bound.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._over = True
            raise ValueError("another request is in progress")  # The parser stops.
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # Servers may add keys.
        self._in_headers = True
        self._fields = 0
        if self._deadline is None:
            self._await_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers of a body are counted and dropped."""
        self._fields += len(name) + len(value)
        if self._fields > MAX_HEADER_BYTES:
            self._refuse(*_TOO_LARGE)
            raise ValueError("headers too large")  # The parser stops.
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve the request."""
        self._in_headers = False
        self._received = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().on_headers_complete()

    def _should_upgrade(self) -> bool:
        """True: requests to go on in another protocol are not served as they are, but by `handle_websocket_upgrade`."""
        return bool(self.parser.get_method() != b"CONNECT")

    def handle_websocket_upgrade(self) -> None:
        """Serve the request in HTTP/1.1: what is after the headers is its body, and not another protocol."""
        after = self._data[sys.exc_info()[1].args[0] :]  # type: ignore[union-attr]  # Where the parser stopped.
        head = [b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)]
        head += [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn's.
        super().data_received(b"".join((*head, b"\r\n", after)))

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless it was answered."""
        if not (self._over or self.transport.is_closing()):
            super().send_400_response(msg)

    @property
    def full(self) -> bool:
        """True if so much of an answer is unread that no more may be written."""
        return bool(self.flow.write_paused)

    async def drained(self) -> None:
        """Wait until more may be written, or the connection is lost."""
        await self.flow.drain()

    def write_chunk(self, part: bytes) -> None:
        """Write a part of an answer that was begun without a length; nothing once the connection is closing."""
        if part and not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def pause_writing(self) -> None:
        """Wait for a peer that does not read, but not for ever."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the peer has read."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _refuse(self, code: int, phrase: str, message: str) -> None:
        head = f"HTTP/1.1 {code} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {len(message) + 1}\r\n"
        self.transport.write(f"{head}retry-after: 1\r\nconnection: close\r\n\r\n{message}\n".encode())
        self.transport.close()
