"""Ports for servers that stop and return on the same port."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_CHANCE = SystemRandom()
"""A generator of its own, since tests seed the global one alike."""


def free_port() -> int:
    """Return a free port on loopback, outside of the range from which the system assigns ports."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = _CHANCE.randrange(first // 2, first)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"of the ports {first // 2} to {first - 1} none is free")
