"""One HTTP request and its answer: JSON, or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec
from headrace_proto.pure.host_shares import host_of
from starlette.requests import Request

from headrace_gateway.access import callers
from headrace_gateway.http.bodies import Bodies, read_object, struct_of, without_effect
from headrace_gateway.http.callers import Caller
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.protocol import CONNECTION, BoundedProtocol
from headrace_gateway.http.templates import event_of

T = TypeVar("T", bound=msgspec.Struct)
A = TypeVar("A")
R = TypeVar("R")
E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

Send = Callable[[Any], Awaitable[None]]


class Passing(Protocol[E_co]):
    """Gives on what arrives."""

    async def pass_on(self, take: Callable[[E_co], bool]) -> bool:
        """As `AsyncResultQueue.pass_on`."""


_encoder = msgspec.json.Encoder()


class Exchange:
    """A request, and what answers it.

    Args:
        request: the request.
        caller: who makes it.
        send: ASGI's send.
        bodies: bounds the bodies that are read at once.

    Attributes:
        request: the request.
        caller: who makes it.
        begun: an answer was begun: its status cannot be changed any more.
        streams: the answer is a stream of events.
        left: the caller has closed its connection.
    """

    def __init__(self, request: Request, caller: Caller, send: Send, bodies: Bodies) -> None:
        self.request, self.caller = request, caller
        self.begun = self.streams = self.left = False
        self._send, self._bodies = send, bodies
        self._silent = request.method == "HEAD"

    async def body(self) -> dict[str, Any]:
        """Return the body. Raises Failure as `read_object`."""
        return await read_object(self.request, self._bodies, self.caller.peer, self._party)

    async def read(self, kind: type[T], harmless: Mapping[str, Any], refused: Mapping[str, str]) -> T:
        """Return the body as a struct, without what changes nothing.

        Args:
            kind: the struct.
            harmless: as of `without_effect`.
            refused: as of `without_effect`.

        Raises:
            Failure: as `read_object`, `without_effect` and `struct_of`.
        """
        return struct_of(kind, without_effect(await self.body(), harmless, refused))

    async def convert(self, work: Callable[[A], R], message: A) -> R:
        """Convert a large message by `work`, as `Bodies.convert`."""
        return await self._bodies.convert(self._party, work, message)

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Cancel the block when the caller closes its connection. The body must have been read."""
        watching = asyncio.create_task(self._watch(asyncio.current_task()), name="headrace-http-watch")
        try:
            yield
        finally:
            watching.cancel()

    async def answer(
        self, content: Any, code: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with JSON, encoded from a struct."""
        await self.answer_text(_encoder.encode(content), "application/json", code, headers)

    async def answer_text(
        self,
        content: bytes,
        kind: str,
        code: HTTPStatus = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with a text of a media type."""
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        length = (b"content-length", str(len(content)).encode())
        await self._begin(code, [(b"content-type", kind.encode()), length, *more])
        await self._send({"type": "http.response.body", "body": content})

    async def begin_events(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin a stream of events. They are written to the connection itself, each when it is there."""
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.streams = True
        fixed = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._begin(HTTPStatus.OK, [*fixed, *more])

    async def event(self, content: Any, name: str = "") -> None:
        """Send one event, with JSON encoded from a struct."""
        await self.send(event_of(content, name))

    async def send(self, events: bytes) -> None:
        """Send encoded events, once the caller has read enough of those before."""
        if self._connection.full:
            await self._connection.drained()
        if not self._silent:
            self._connection.write_chunk(events)

    async def relay(self, source: Passing[E], events: Callable[[E], bytes]) -> None:
        """Send the events of all that a source gives on, each time in one write, until its end.

        While the caller does not read, nothing is taken from the source either.

        Args:
            source: such as a queue.
            events: returns encoded events of what it gave, which may be none.
        """
        connection, silent = self._connection, self._silent

        def take(given: E) -> bool:
            written = events(given)
            if not silent:
                connection.write_chunk(written)
            return not connection.full

        while not await source.pass_on(take):
            await connection.drained()

    async def end_events(self, last: bytes = b"") -> None:
        """End the stream of events."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    @property
    def _party(self) -> str:
        """Who has turns: the owner of the API key, or the host without keys."""
        key = callers.current().key
        return host_of(self.caller.peer) if key is None else f"owner {key.owner}"

    @property
    def _connection(self) -> BoundedProtocol:
        found: BoundedProtocol = self.request.scope[CONNECTION]
        return found

    async def _begin(self, code: HTTPStatus, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.begun = True
        await self._send({"type": "http.response.start", "status": int(code), "headers": list(headers)})

    async def _watch(self, task: asyncio.Task[Any] | None) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if task is not None:
            task.cancel()


def headers_of(failure: Failure) -> dict[str, str]:
    """Return the headers of a failed request's answer."""
    headers = {}
    if failure.retry_after is not None:
        headers["retry-after"] = str(max(1, round(failure.retry_after + 0.499)))
    if failure.close:
        headers["connection"] = "close"
    return headers
