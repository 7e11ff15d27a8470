"""The interface between the client and its transports: gRPC, or an engine in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from google.protobuf.message import Message

from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.status import failure

ENTRY_POINTS = "headrace.transports"
"""Entry points under which transports are registered by their scheme, such as "inprocess"."""


class CallError(Exception):
    """Raised by a transport for a failed call.

    Attributes:
        status: code, message and typed details of the failure.
        instead: fallback address that the next call goes to; "": the same address.
    """

    def __init__(self, status: Status, *, instead: str = "") -> None:
        super().__init__(status.message)
        self.status = status
        self.instead = instead


def client_closed() -> Status:
    """Return the failure of a call made after `Transport.close`."""
    return failure("UNAVAILABLE", "CLIENT_CLOSED", "the client was closed")


class MessageStream(Protocol):
    """The responses of a streaming call. Iterating raises CallError when the call fails or is cancelled."""

    def __iter__(self) -> Iterator[Message]:
        """Return itself."""

    def __next__(self) -> Message:
        """Return the next response; block until it arrives."""

    def cancel(self) -> None:
        """End the call. Safe from any thread, at any time; idempotent."""


class MessageChannel(MessageStream, Protocol):
    """A bidirectional streaming call. Safe to send from several threads, to read from one.

    Iterating raises CallError when the call fails or is cancelled, and stops when the server ends it.
    """

    def send(self, message: Message) -> None:
        """Queue a request; return at once. Dropped after the end of the call."""

    def half_close(self) -> None:
        """Send no more requests; responses still come. Idempotent."""

    def cancel(self, *, lost: bool = False) -> None:
        """End the call. Safe from any thread, at any time; idempotent.

        Args:
            lost: the server is silent and may be gone; if there are several, the next call goes to another.
        """


class Transport(Protocol):
    """Carries calls. Safe to use from several threads.

    `method` is a full name such as "headrace.v1.RequestService/StartRequest"; `timeout` is in seconds, None = no limit.
    """

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """Make a unary call. Raises CallError."""

    def stream(self, method: str, request: Message, *, timeout: float | None) -> MessageStream:
        """Begin a server-streaming call; return at once."""

    def close(self) -> None:
        """End all calls and release all resources. Later calls fail with CallError."""


@runtime_checkable
class Reconnecting(Protocol):
    """A transport whose connections may die without a sign."""

    def reconnect(self) -> None:
        """Make the next unary call over a new connection, to another address if there are several.

        Calls in progress go on.
        """


@runtime_checkable
class SessionTransport(Transport, Protocol):
    """A transport that also carries sessions; over one that does not, each queue has a stream of its own."""

    def session(self, method: str, *, timeout: float | None = None) -> MessageChannel:
        """Begin a bidirectional streaming call; return at once. Raises CallError."""
