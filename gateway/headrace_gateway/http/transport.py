"""The gateway's own services as a transport of the asynchronous client, within one event loop.

Callers of HTTP are read by the client's own machinery, so that order, checksums, retries and hand-overs are the same as
for callers of gRPC. Messages cross as they are: neither side changes one that it has sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from headrace_proto.pure.faults import is_fault
from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.transport import CallError, client_closed

from headrace_gateway import status
from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.faults import defect
from headrace_gateway.http.callers import CALLER, Caller

_AHEAD = 4
"""Messages of a stream that wait for a slow reader; beyond that the method waits."""

Behaviour = Callable[[Any, Any], Any]


class OwnServices:
    """Calls the methods of the gateway's servicers. A `headrace._transport.aio_transport.AsyncTransport`.

    Args:
        servicers: by the full name of their service.
        access: which calls a caller may make.

    Attributes:
        caller: whose calls these are.
    """

    def __init__(self, servicers: Mapping[str, Any], access: Access) -> None:
        self.caller = callers.ANYONE
        self._servicers = servicers
        self._access = access
        self._open: set[OwnCall] = set()
        self._closed = False

    async def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """Make a unary call. Raises CallError."""
        context = LocalContext(CALLER.get(), timeout)
        try:
            async with asyncio.timeout(timeout):
                self._check(method, request)
                answer: Message = await self._behaviour(method)(request, context)
                return answer
        except BaseException as error:
            if (failed := _status_of(method, error)) is None:
                raise
            raise CallError(failed) from None

    def stream(self, method: str, request: Message, *, timeout: float | None) -> OwnCall:
        """Begin a call that streams responses."""
        return self._begin(method, request, timeout)

    def session(self, method: str) -> OwnCall:
        """Begin a call that streams both ways."""
        return self._begin(method, None, None)

    async def close(self) -> None:
        """Cancel all calls; later ones fail."""
        self._closed = True
        calls = list(self._open)
        for call in calls:
            call.cancel()
        await asyncio.gather(*(call.task for call in calls), return_exceptions=True)

    def _check(self, method: str, request: Message) -> None:
        callers.note(self.caller)
        self._access.check(self.caller, method.rpartition("/")[2], request)

    def _begin(self, method: str, request: Message | None, timeout: float | None) -> OwnCall:
        callers.note(self.caller)  # The task of the call inherits it.
        if request is not None:
            try:
                self._check(method, request)
            except status.CallError as error:
                raise CallError(error.status) from None
        call = OwnCall(method, self._behaviour(method), request, timeout)
        self._open.add(call)
        call.task.add_done_callback(lambda _: self._open.discard(call))
        return call

    def _behaviour(self, method: str) -> Behaviour:
        if self._closed:
            raise CallError(client_closed())
        service, _, name = method.partition("/")
        behaviour: Behaviour = getattr(self._servicers[service], name)
        return behaviour


class OwnCall:
    """A streaming call: a task that runs the method, and what it has written. One reader at a time.

    Args:
        method: full name.
        behaviour: method of a servicer.
        request: the request; None: a stream of those that are sent.
        timeout: seconds after which it fails with DEADLINE_EXCEEDED; None: never.

    Attributes:
        task: runs the method.
    """

    def __init__(self, method: str, behaviour: Behaviour, request: Message | None, timeout: float | None) -> None:
        self._method, self._timeout = method, timeout
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._written: asyncio.Queue[Message] = asyncio.Queue(_AHEAD)
        argument = request if request is not None else self._requests()
        context = LocalContext(CALLER.get(), timeout, self._written.put)
        self.task = asyncio.create_task(self._run(behaviour, argument, context), name="headrace-own-call")

    def __aiter__(self) -> OwnCall:
        return self

    async def __anext__(self) -> Message:
        """Return the next response. Raises CallError."""
        if self._written.empty() and not self.task.done():
            reading = asyncio.ensure_future(self._written.get())
            try:
                await asyncio.wait((reading, self.task), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                reading.cancel()
                self.cancel()
                raise
            if reading.done():
                return reading.result()
            reading.cancel()
        if not self._written.empty():
            return self._written.get_nowait()
        failed = _end_of(self.task)
        if failed is None:
            raise StopAsyncIteration
        raise CallError(failed)

    def send(self, message: Message) -> None:
        """Queue a request."""
        self._sent.put_nowait(message)

    def half_close(self) -> None:
        """Send no more requests."""
        self._sent.put_nowait(None)

    def cancel(self, *, lost: bool = False) -> None:
        """Cancel the call. `lost` has no effect: there is no other server."""
        self.task.cancel()

    async def _requests(self) -> AsyncIterator[Message]:
        while (message := await self._sent.get()) is not None:
            yield message

    async def _run(self, behaviour: Behaviour, argument: Any, context: LocalContext) -> Status | None:
        """Run the method. Return its failure, if it failed."""
        try:
            async with asyncio.timeout(self._timeout):
                await behaviour(argument, context)
        except BaseException as error:
            if (failed := _status_of(self._method, error)) is None:
                raise
            return failed
        return None


class LocalContext:
    """The part of gRPC's context that servicers use.

    Args:
        caller: who calls.
        timeout: seconds that the call may take; None: no limit.
        write: takes a response of a stream.
    """

    def __init__(self, caller: Caller, timeout: float | None, write: Callable[[Any], Any] | None = None) -> None:
        self._caller = caller
        self._expires = None if timeout is None else time.monotonic() + timeout
        self.write = write

    def peer(self) -> str:
        """Return the caller's end of the connection."""
        return self._caller.peer

    def time_remaining(self) -> float | None:
        """Return the seconds left; None: no limit."""
        return None if self._expires is None else max(0.0, self._expires - time.monotonic())

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of the call."""
        return self._caller.metadata

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Do nothing: there is no wire."""


def _status_of(method: str, error: BaseException) -> Status | None:
    """Return the status of a call that raised an error; None if its task was cancelled."""
    if isinstance(error, CallError | status.CallError):
        return error.status
    if isinstance(error, TimeoutError):
        return Status(code=grpc.StatusCode.DEADLINE_EXCEEDED.value[0], message="the call's deadline expired")
    return defect(method, error).status if is_fault(error) else None


def _end_of(task: asyncio.Task[Status | None]) -> Status | None:
    if task.cancelled():
        return Status(code=grpc.StatusCode.CANCELLED.value[0], message="the call was cancelled")
    return task.result()
