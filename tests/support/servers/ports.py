"""Ports for servers that stop and return on the same port."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_CHANCE = SystemRandom()
"""A generator of its own, since tests seed the global one alike."""
_PRIVILEGED = 1024


def free_port() -> int:
    """Return a free port on loopback, outside of the range from which the system assigns ports where there is any."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = [*range(max(_PRIVILEGED, first // 2), first), *range(last + 1, 1 << 16)]
    ports: Sequence[int] = outside or range(_PRIVILEGED, 1 << 16)
    for _ in range(1000):
        port = _CHANCE.choice(ports)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"of the ports {ports[0]} to {ports[-1]} none is free")
