"""Addresses to listen on, checked before gRPC takes them: it reads port 99999 as 34463, and a missing one as 443."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Any

_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A name such as localhost resolves to IPv6 also on hosts without it; gRPC then serves the rest."""


class ListenError(Exception):
    """An address that cannot be listened on; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 takes any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """An address written HOST:PORT.

    Raises:
        ListenError: it is not so written, or the port is none.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ListenError(f'cannot listen on "{text}": an address is HOST:PORT, with a port of 0 to 65535')
    return Address(host, int(port))


def check_free(address: Address) -> None:
    """Refuse an address that something else listens on, under any of the addresses that its host stands for.

    Raises:
        ListenError: what the operating system says.
    """
    failures = [_try_to_bind(*found) for found in _resolve(address)]
    wrong = [failure for failure in failures if failure is not None]
    taken = [failure for failure in wrong if failure.errno not in _NO_SUCH_FAMILY]
    if taken or len(wrong) == len(failures):
        raise ListenError(f"cannot listen on {address}: {_reason([*taken, *wrong][0])}")


def _resolve(address: Address) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {_reason(error)}") from None
    return [(family, socket_address) for family, _, _, _, socket_address in found]


def _try_to_bind(family: socket.AddressFamily, socket_address: Any) -> OSError | None:
    """The error that binding meets, if any."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(socket_address)
    except OSError as error:
        return error
    return None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
