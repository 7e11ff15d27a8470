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
    """What a transport raises for a failed call.

    Attributes:
        status: code, message and typed details of the failure.
        instead: the other address that the next call goes to; "": the same.
    """

    def __init__(self, status: Status, *, instead: str = "") -> None:
        super().__init__(status.message)
        self.status = status
        self.instead = instead


def client_closed() -> Status:
    """The failure of a call that is made after `Transport.close`."""
    return failure("UNAVAILABLE", "CLIENT_CLOSED", "the client was closed")


class MessageStream(Protocol):
    """The answers of a streaming call. Iterating raises CallError when the call fails, also when it is cancelled."""

    def __iter__(self) -> Iterator[Message]:
        """Itself."""

    def __next__(self) -> Message:
        """The next answer; blocks until it is there."""

    def cancel(self) -> None:
        """Ends the call; safe from any thread, at any time, more than once."""


class MessageChannel(MessageStream, Protocol):
    """A call with many questions and many answers, as they come. Safe to send from several threads, to read from one.

    Iterating raises CallError when the call fails, also when it is cancelled, and stops when the server ends it.
    """

    def send(self, message: Message) -> None:
        """Sends a question after those before it; waits for nothing. After the end of the call it is lost."""

    def half_close(self) -> None:
        """No more questions follow; answers still come. More than once is once."""

    def cancel(self, *, lost: bool = False) -> None:
        """Ends the call; safe from any thread, at any time, more than once.

        Args:
            lost: the server is silent and may be gone: where there are several, the next call goes to another.
        """


class Transport(Protocol):
    """Carries calls. Safe to use from several threads.

    `method` is a full name such as "headrace.v1.RequestService/StartRequest"; `timeout` is in seconds, None = no limit.
    """

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        """One question, one answer. Raises CallError."""

    def stream(self, method: str, request: Message, *, timeout: float | None) -> MessageStream:
        """One question, many answers. Does not wait for the first."""

    def close(self) -> None:
        """Ends all calls and gives everything back. Later calls fail with CallError."""


@runtime_checkable
class SessionTransport(Transport, Protocol):
    """A transport that also carries conversations; over another one each queue has a stream of its own."""

    def session(self, method: str, *, timeout: float | None = None) -> MessageChannel:
        """Many questions, many answers. Waits for nothing. Raises CallError."""
