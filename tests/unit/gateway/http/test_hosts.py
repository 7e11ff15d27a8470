"""Hosts that requests over loopback may name."""

from __future__ import annotations

import socket

import pytest
from headrace_gateway.http.failures import Failure
from headrace_gateway.http.hosts import check_host

OWN = ["localhost", "LocalHost:7080", "127.0.0.1:7080", "127.0.0.1", "[::1]:7080", "[::1]", "gw.localhost:7080"]


@pytest.mark.parametrize("host", [*OWN, "192.168.1.2:80", socket.gethostname(), f"{socket.gethostname()}:7080", ""])
def test_addresses_and_names_of_the_machine_are_taken(host: str) -> None:
    check_host({"server": ("127.0.0.1", 7080)}, host)
    check_host({"server": ("::1", 7080)}, host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7080", "localhost.evil.example", "127.0.0.1.evil.example:1"]
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    for server in (("127.0.0.1", 7080), ("::1", 7080)):
        with pytest.raises(Failure, match="Host header"):
            check_host({"server": server}, host)


def test_other_names_are_taken_beyond_loopback() -> None:
    check_host({"server": ("10.0.0.3", 7080)}, "api.example.com")
    check_host({"server": None}, "api.example.com")
