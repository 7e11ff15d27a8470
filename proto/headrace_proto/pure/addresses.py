"""Addresses of servers, and why one was not reached."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_WRAPPING = "failed to connect to all addresses; last error: "
_CODE = re.compile(r"[A-Z_]+: ")
_IPV4_URI = re.compile(r"\bipv4:(?=[\d.]+:\d)")
_IPV6_URI = re.compile(r"\bipv6:%5B([0-9A-Fa-f:.%]*?)%5D(?=:\d)")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class Address:
    """A host, an IPv6 address without brackets, and a port; to listen on, port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_address(text: str, *, least_port: int = 0) -> Address:
    """Parse "host:port", "1.2.3.4:port" or "[ipv6]:port".

    Raises:
        ValueError: the text has another form; the message says what to write.
    """
    host, _, port = text.rpartition(":")
    if not _is_host(host) or not port.isascii() or not port.isdigit() or not least_port <= int(port) <= 65535:
        forms = '"localhost:7070" or "[::1]:7070"'
        raise ValueError(f"write HOST:PORT, such as {forms}, with a port of {least_port} to 65535")
    return Address(host.strip("[]"), int(port))


def parse_addresses(text: str) -> list[str]:
    """Return gRPC targets, in the order given.

    Each is "host:port", "1.2.3.4:port", "[ipv6]:port" or "unix:/path".

    Raises:
        ValueError: an address cannot be parsed or is repeated; the message names it.
    """
    targets = [_parse(part.strip(), text) for part in text.split(",")]
    for index, target in enumerate(targets):
        if target in targets[:index]:
            raise ValueError(f'address "{target}" stands twice in "{text}"')
    return targets


def plain_reason(details: str, target: str) -> str:
    """Return why gRPC reached no server, readably: "[::1]:7070" for "ipv6:%5B::1%5D:7070", without repetitions.

    Args:
        details: gRPC's own message.
        target: address that was called, which the message around this already names.
    """
    text = _IPV6_URI.sub(r"[\1]", _IPV4_URI.sub("", details))
    if text.startswith(_WRAPPING):
        text = _CODE.sub("", text.removeprefix(_WRAPPING), count=1)
    return text.removeprefix(f"{target}: ")


def is_local(target: str) -> bool:
    """True if data sent to a target never leaves this machine."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse(address: str, text: str) -> str:
    if address.startswith("unix:") and len(address) > len("unix:"):
        return address
    try:
        read_address(address, least_port=1)
    except ValueError as error:
        whole = "" if address == text else f' in "{text}"'
        raise ValueError(f'address "{address}"{whole} cannot be parsed: {error}') from None
    return address


def _is_host(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return False
        return True
    return _HOST.fullmatch(host) is not None
