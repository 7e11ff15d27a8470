"""Addresses to listen on, checked before gRPC takes them: it reads port 99999 as 34463, and a missing one as 443."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Any

_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A name such as localhost may resolve to IPv6 on hosts without it; gRPC then serves the other addresses."""


class ListenError(Exception):
    """An address that cannot be listened on; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 takes any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse HOST:PORT.

    Raises:
        ListenError: the text has another form, or the port is out of range.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ListenError(f'cannot listen on "{text}": an address is HOST:PORT, with a port of 0 to 65535')
    return Address(host, int(port))


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
