"""Opening the transport for an address: gRPC, or an engine in the same process."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, cast

from headrace_proto.v1.status_pb2 import Status
from headrace_proto.wire.status import CODES, failure
from headrace_proto.wire.transport import ENTRY_POINTS, CallError, Transport

from headrace._values.refusals import unknown_name

_CLIENT_KEYWORDS = ("address", "timeout", "owner", "retry", "handover", "clock")


STATUS_LOST = "STATUS_LOST"
"""Reason of a stream that ended for a reason which gRPC lost; opening it again brings the reason up."""


def broke_off(what: str) -> CallError:
    """Return the exception of a stream that ended early."""
    return CallError(Status(code=CODES["UNAVAILABLE"], message=f"{what} was interrupted"))


def status_lost(what: str) -> CallError:
    """Return the exception of a stream that ended with a status which gRPC lost."""
    return CallError(failure("UNAVAILABLE", STATUS_LOST, f"{what} was interrupted"))


def open_transport(address: str, options: dict[str, Any]) -> Transport:
    """Return the transport for an address: a registered one for "inprocess:", else gRPC.

    Raises:
        ValueError: the address cannot be parsed.
        ImportError: the address needs a package that is not installed.
        TypeError: the transport does not have an option.
    """
    scheme = registered_scheme(address)
    if scheme is not None:
        return open_registered(scheme, options)
    from headrace._transport.grpc_transport import GrpcTransport

    check_options("Client", GrpcTransport, options)
    return GrpcTransport(address, **options)


def check_options(client: str, transport: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check that all keywords are of the client or its transport.

    Args:
        client: name of the client's class, for the message.
        transport: constructor of the transport; its keywords are the options.
        options: keywords of the caller that the client itself does not have.

    Raises:
        TypeError: a keyword is unknown; similar ones are listed.
    """
    known = [name for name, one in signature(transport).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name(f'{client}() has no keyword "{name}"', name, [*_CLIENT_KEYWORDS, *known])


def registered_scheme(address: str) -> str | None:
    """Return the name of a registered transport, as in "inprocess:"; None for an address of gRPC."""
    scheme, colon, rest = address.partition(":")
    return scheme if colon and not rest else None


def open_registered(scheme: str, options: dict[str, Any]) -> Transport:
    """Return a transport that another package registered. Raises as `open_transport`."""
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
