"""Servers and clients that are used for long hold no more than before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest
from headrace import Client
from servers import engine_server, gateway_server

MOST = 5 << 20
"""Bytes that may be added once everything has been used."""


@pytest.fixture
def address() -> Iterator[tuple[str, list[psutil.Process]]]:
    """Of a gateway; with the processes that are looked at, this one among them."""
    with ExitStack() as stack:
        engine = stack.enter_context(engine_server("e1"))
        gateway = stack.enter_context(gateway_server({"e1": engine.address}))
        pids = (engine.process.pid, gateway.process.pid, None)
        yield gateway.address, [psutil.Process(pid) for pid in pids]


def held(processes: list[psutil.Process]) -> list[int]:
    gc.collect()
    return [process.memory_info().rss for process in processes]


def use(address: str, calls: int, clients: int) -> None:
    with Client(address) as client:
        for _ in range(calls):
            client.list_models()
    for _ in range(clients):
        with Client(address) as client:
            client.server_info()


@pytest.mark.parametrize(
    ("calls", "clients"), [(300, 60), pytest.param(50_000, 1_500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_bc188_calls_and_clients_leave_nothing_behind(
    address: tuple[str, list[psutil.Process]], calls: int, clients: int
) -> None:
    """The first half fills caches and pools; the second one adds nothing."""
    where, processes = address
    use(where, calls, clients)
    before, files = held(processes), processes[-1].num_fds()
    use(where, calls, clients)
    grown = [now - then for now, then in zip(held(processes), before, strict=True)]
    assert max(grown) < MOST, grown
    assert processes[-1].num_fds() <= files + 4
