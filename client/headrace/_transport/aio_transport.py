"""The interface of transports of the asynchronous client, and opening one for an address."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message
from headrace_proto.wire.transport import Transport

from headrace._transport.transport import check_options, open_registered, registered_scheme


class AsyncMessageStream(Protocol):
    """The responses of a streaming call. Iterating raises CallError when the call fails or is cancelled."""

    def __aiter__(self) -> AsyncMessageStream:
        """Return the stream itself."""

    async def __anext__(self) -> Message:
        """Return the next response. Cancelling this wait ends the call."""

    def cancel(self) -> None:
        """Cancel the call; do nothing if it has ended."""


class AsyncMessageChannel(AsyncMessageStream, Protocol):
    """A call that streams both ways.

    Iterating raises CallError when the call fails or is cancelled, and stops when the server ends it.
    """

    def send(self, message: Message) -> None:
        """Queue a message to be sent, in order. After the end of the call it is dropped."""

    def half_close(self) -> None:
        """End the sending direction; responses still arrive. Do nothing if it has ended."""

    def cancel(self, *, lost: bool = False) -> None:
        """Cancel the call; do nothing if it has ended.

        Args:
            lost: the server does not respond; the next call goes to another address, if there are several.
        """


class AsyncTransport(Protocol):
    """Makes calls in one event loop.

    `method` is a full name such as "headrace.v1.RequestService/StartRequest"; `timeout` is in seconds, None = no limit.
    Opening a stream does not wait; iterating over it does.
    """

    async def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """Make a unary call and return its response. Raises CallError."""

    def stream(self, method: str, request: Message, *, timeout: float | None) -> AsyncMessageStream:
        """Open a call that streams responses. Raises CallError."""

    def session(self, method: str) -> AsyncMessageChannel:
        """Open a call that streams both ways. Raises CallError."""

    async def close(self) -> None:
        """End all calls and free all resources. Later calls raise CallError."""


@runtime_checkable
class AsyncCapable(Protocol):
    """A synchronous transport that can be used in an event loop too."""

    def for_asyncio(self) -> AsyncTransport:
        """Return the same transport for an event loop. Closing either closes both."""


def open_async_transport(address: str, options: dict[str, Any]) -> AsyncTransport:
    """Return the transport for an address: a registered one for "inprocess:", else gRPC.

    Raises:
        ValueError: the address cannot be parsed.
        ImportError: the address needs a package that is not installed.
        TypeError: the transport does not have an option, or does not support event loops.
    """
    scheme = registered_scheme(address)
    if scheme is not None:
        return for_asyncio(open_registered(scheme, options))
    from headrace._transport.aio_grpc import AsyncGrpcTransport

    check_options("AsyncClient", AsyncGrpcTransport, options)
    return AsyncGrpcTransport(address, **options)


def for_asyncio(transport: Transport) -> AsyncTransport:
    """Return a transport of the synchronous client for an event loop.

    Raises:
        TypeError: the transport does not support event loops.
    """
    if not isinstance(transport, AsyncCapable):
        raise TypeError(f"{type(transport).__name__} cannot be used in an event loop: it has no for_asyncio()")
    return transport.for_asyncio()
