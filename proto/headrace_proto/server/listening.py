"""Addresses to listen on, checked before gRPC takes them: it reads port 99999 as 34463, and a missing one as 443."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_proto.pure.addresses import Address, read_address

if TYPE_CHECKING:
    import grpc

_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A name such as localhost may resolve to IPv6 on hosts without it; gRPC then serves the other addresses."""


class ListenError(Exception):
    """An address that cannot be listened on; the text is one line that says why."""


def parse_address(text: str) -> Address:
    """Parse HOST:PORT.

    Raises:
        ListenError: the text has another form, or the port is out of range.
    """
    try:
        return read_address(text)
    except ValueError as error:
        raise ListenError(f'cannot listen on "{text}": {error}') from None


def check_free(address: Address) -> None:
    """Refuse an address that is in use, under any of the addresses that its host resolves to.

    Raises:
        ListenError: the operating system's error.
    """
    failures = [_try_to_bind(*found) for found in _resolve(address)]
    wrong = [failure for failure in failures if failure is not None]
    taken = [failure for failure in wrong if failure.errno not in _NO_SUCH_FAMILY]
    if taken or len(wrong) == len(failures):
        raise ListenError(f"cannot listen on {address}: {_reason([*taken, *wrong][0])}")


def bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None = None) -> Address:
    """Let a server listen on an address. Return it with the real port.

    Args:
        server: the server, not yet started.
        address: where to listen.
        credentials: for TLS; None: no encryption.

    Raises:
        ListenError: the address is in use, or not one of this machine.
    """
    check_free(address)
    try:
        if credentials is None:
            return replace(address, port=server.add_insecure_port(str(address)))
        return replace(address, port=server.add_secure_port(str(address), credentials))
    except RuntimeError:
        why = "the address is in use, or not an address of this machine"
        raise ListenError(f"cannot listen on {address}: {why}") from None


def _resolve(address: Address) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {_reason(error)}") from None
    return [(family, socket_address) for family, _, _, _, socket_address in found]


def _try_to_bind(family: socket.AddressFamily, socket_address: Any) -> OSError | None:
    """Return the error of binding; None if it succeeds."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(socket_address)
    except OSError as error:
        return error
    return None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
