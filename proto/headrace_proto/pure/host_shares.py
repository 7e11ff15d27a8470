"""Shares of a server's limits: by host, and within a host's share by connection."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import unquote

from headrace_proto.pure.shares import Shares, within_share

_IPV6_PREFIX = 64


class HostShares(Shares[str]):
    """Use of a common limit, by host and connection. A host with many connections gets no more than with one.

    The rule of `Shares` applies twice: among hosts, and among the connections of a host for what the host may still
    take. A connection that holds nothing always gets one if its host may take one. A party is a connection's other
    end, as gRPC names it.

    Args:
        limit: of all hosts together.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._hosts: Shares[str] = Shares(limit)

    def can_take(self, party: str, count: int = 1) -> bool:
        """True if `count` more are within a connection's share."""
        host = host_of(party)
        if not self._hosts.can_take(host, count):
            return False
        free, held = self.limit - self.taken - count, self._hosts.held(host) + count
        return within_share(self.held(party) + count, max(0, (3 * free - held) // 4))

    def refusal(self, party: str, what: str, verb: str = "this client's host has") -> str:
        """Return why a connection may not take one more, as text for people."""
        host = host_of(party)
        if not self._hosts.can_take(host):
            return self._hosts.refusal(host, what, verb)
        held, all_held = self.held(party), self._hosts.held(host)
        return f"this connection has {held} {what}, of {all_held} of its host, whose other connections need the rest"

    def take(self, party: str, count: int = 1) -> None:
        """Count `count` more for a connection."""
        super().take(party, count)
        self._hosts.take(host_of(party), count)

    def give_back(self, party: str, count: int = 1) -> None:
        """Count `count` fewer for a connection."""
        super().give_back(party, count)
        self._hosts.give_back(host_of(party), count)


def is_loopback(peer: str) -> bool:
    """True if a peer is on this machine: on a Unix socket, or with a loopback address."""
    address = _address_of(peer)
    return peer.startswith("unix:") if address is None else address.is_loopback


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """Return the host of a peer such as "ipv4:192.0.2.1:5000": its address; of IPv6, the 64 bits that it cannot choose.

    All peers on Unix sockets count as one host, and so do all peers without an address.
    """
    address = _address_of(peer)
    if address is None:
        return unquote(peer).partition(":")[0]
    return str(address if address.version == 4 else ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def _address_of(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a peer, of IPv4 where it is mapped; None if it has none."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    try:
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
