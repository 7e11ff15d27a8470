"""The seam between the client and whatever carries its messages: gRPC, or an engine in the same process."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, Protocol, cast, runtime_checkable

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from headrace_proto.v1 import status_pb2

from headrace.fill import unknown_name
from headrace.wire_errors import UNAVAILABLE

ENTRY_POINTS = "headrace.transports"
_CLIENT_KEYWORDS = ("address", "timeout", "owner", "retry", "clock")


class CallError(Exception):
    """What a transport raises for a failed call.

    Attributes:
        status: code, message and typed details of the failure.
        instead: the other address that the next call goes to; "": the same.
    """

    def __init__(self, status: status_pb2.Status, *, instead: str = "") -> None:
        super().__init__(status.message)
        self.status = status
        self.instead = instead


def client_closed() -> status_pb2.Status:
    """The failure of a call that is made after `Transport.close`."""
    info = status_pb2.ErrorInfo(reason="CLIENT_CLOSED", domain="headrace")
    detail = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    return status_pb2.Status(code=UNAVAILABLE, message="the client was closed", details=[detail])


def broke_off(what: str) -> CallError:
    """The failure of a stream that stopped before it was to."""
    return CallError(status_pb2.Status(code=UNAVAILABLE, message=f"{what} broke off"))


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


def open_transport(address: str, options: dict[str, Any]) -> Transport:
    """The transport for an address: a registered one for "inprocess:", else gRPC.

    Raises:
        ValueError: the address cannot be parsed; the message names it.
        ImportError: the address needs a package that is not installed; the message names it.
        TypeError: an option that the transport does not know.
    """
    scheme = registered_scheme(address)
    if scheme is not None:
        return open_registered(scheme, options)
    from headrace.grpc_transport import GrpcTransport

    check_options("Client", GrpcTransport, options)
    return GrpcTransport(address, **options)


def check_options(client: str, transport: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuses keywords that neither a client nor its transport has.

    Args:
        client: name of the client's class, which is what the caller called.
        transport: what makes the transport; its keywords are the options.
        options: what the caller gave beside the client's own keywords.

    Raises:
        TypeError: one is unknown; close ones are listed.
    """
    known = [name for name, one in signature(transport).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name(f'{client}() has no keyword "{name}"', name, [*_CLIENT_KEYWORDS, *known])


def registered_scheme(address: str) -> str | None:
    """The name of a registered transport, as in "inprocess:"; None: it is an address for gRPC."""
    scheme, colon, rest = address.partition(":")
    return scheme if colon and not rest else None


def open_registered(scheme: str, options: dict[str, Any]) -> Transport:
    """A transport that another package registered; raises as `open_transport`."""
    found = list(entry_points(group=ENTRY_POINTS, name=scheme))
    if found:
        return cast(Transport, found[0].load()(**options))
    if scheme == "inprocess":
        raise ImportError(
            '"inprocess:" runs the engine in this process and needs the package headrace-engine, which is not '
            "installed; from a clone of Headrace: pip install ./proto ./engine_service"
        )
    close = difflib.get_close_matches(scheme, ["inprocess"])
    advice = f'did you mean "{close[0]}:"?' if close else 'write host:port, such as "localhost:7070"'
    raise ValueError(f'address "{scheme}:" cannot be parsed: {advice}')
