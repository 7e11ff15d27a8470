"""Shares of a server's limits: by host, and within a host's share by connection."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import unquote

from headrace_proto.pure.shares import Shares, within_share

_IPV6_PREFIX = 64


class HostShares:
    """Use of a common limit, by host and connection. A host with many connections gets no more than with one.

    The rule of `Shares` applies twice: among hosts, and among the connections of a host for what the host may still
    take. A connection that holds nothing always gets one if its host may take one.

    Args:
        limit: of all hosts together.
    """

    def __init__(self, limit: int) -> None:
        self._hosts: Shares[str] = Shares(limit)
        self._connections: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Number taken by all hosts together."""
        return self._hosts.taken

    def has_room(self, peer: str) -> bool:
        """True if one more is within a connection's share.

        Args:
            peer: the connection's other end, as gRPC names it.
        """
        host = host_of(peer)
        if not self._hosts.has_room(host):
            return False
        free, held = self._hosts.limit - self.taken - 1, self._hosts.held(host) + 1
        return within_share(self._connections[peer] + 1, max(0, (3 * free - held) // 4))

    def refusal(self, peer: str, what: str) -> str:
        """Return why a connection may not take one more, as text for people."""
        host = host_of(peer)
        if self._hosts.has_room(host):
            held, all_held = self._connections[peer], self._hosts.held(host)
            return (
                f"this connection has {held} {what}, of {all_held} of its host, whose other connections need the rest"
            )
        return self._hosts.refusal(host, what, "this client's host has")

    def take(self, peer: str) -> None:
        """Count one more for a connection."""
        self._hosts.take(host_of(peer))
        self._connections[peer] += 1

    def give_back(self, peer: str) -> None:
        """Count one fewer for a connection."""
        self._hosts.give_back(host_of(peer))
        self._connections[peer] -= 1
        if not self._connections[peer]:
            del self._connections[peer]

    @contextmanager
    def holding(self, peer: str) -> Iterator[None]:
        """Count one more for a connection within this context."""
        self.take(peer)
        try:
            yield
        finally:
            self.give_back(peer)


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """Return the host of a peer such as "ipv4:192.0.2.1:5000": its address; of IPv6, the 64 bits that it cannot choose.

    All peers on Unix sockets count as one host, and so do all peers without an address.
    """
    kind, _, place = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    try:
        address = ipaddress.ip_address(place.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return kind
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
