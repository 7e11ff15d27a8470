"""The seam between the asynchronous client and whatever carries its messages."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message
from headrace_proto.wire.transport import Transport

from headrace._transport.transport import check_options, open_registered, registered_scheme


class AsyncMessageStream(Protocol):
    """The answers of a streaming call. Iterating raises CallError when the call fails, also when it is cancelled."""

    def __aiter__(self) -> AsyncMessageStream:
        """Itself."""

    async def __anext__(self) -> Message:
        """The next answer. Cancelling this wait ends the call."""

    def cancel(self) -> None:
        """Ends the call; more than once is once."""


class AsyncMessageChannel(AsyncMessageStream, Protocol):
    """A call with many questions and many answers, as they come.

    Iterating raises CallError when the call fails, also when it is cancelled, and stops when the server ends it.
    """

    def send(self, message: Message) -> None:
        """Sends a question after those before it; waits for nothing. After the end of the call it is lost."""

    def half_close(self) -> None:
        """No more questions follow; answers still come. More than once is once."""

    def cancel(self, *, lost: bool = False) -> None:
        """Ends the call; more than once is once.

        Args:
            lost: the server is silent and may be gone: where there are several, the next call goes to another.
        """


class AsyncTransport(Protocol):
    """Carries calls, in one event loop.

    `method` is a full name such as "headrace.v1.RequestService/StartRequest"; `timeout` is in seconds, None = no limit.
    Streams wait for nothing before they are iterated over.
    """

    async def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """One question, one answer. Raises CallError."""

    def stream(self, method: str, request: Message, *, timeout: float | None) -> AsyncMessageStream:
        """One question, many answers. Raises CallError."""

    def session(self, method: str) -> AsyncMessageChannel:
        """Many questions, many answers. Raises CallError."""

    async def close(self) -> None:
        """Ends all calls and gives everything back. Later calls fail with CallError."""


@runtime_checkable
class AsyncFace(Protocol):
    """A transport that can be used in an event loop too."""

    def for_asyncio(self) -> AsyncTransport:
        """The same transport, for a loop. Closing either closes both."""


def open_async_transport(address: str, options: dict[str, Any]) -> AsyncTransport:
    """The transport for an address: a registered one for "inprocess:", else gRPC.

    Raises:
        ValueError: the address cannot be parsed; the message names it.
        ImportError: the address needs a package that is not installed; the message names it.
        TypeError: an option that the transport does not know, or a transport that is not for event loops.
    """
    scheme = registered_scheme(address)
    if scheme is not None:
        return for_asyncio(open_registered(scheme, options))
    from headrace._transport.aio_grpc import AsyncGrpcTransport

    check_options("AsyncClient", AsyncGrpcTransport, options)
    return AsyncGrpcTransport(address, **options)


def for_asyncio(transport: Transport) -> AsyncTransport:
    """A transport of the other client, for an event loop.

    Raises:
        TypeError: it has no such face.
    """
    if not isinstance(transport, AsyncFace):
        raise TypeError(f"{type(transport).__name__} cannot be used in an event loop: it has no for_asyncio()")
    return transport.for_asyncio()
