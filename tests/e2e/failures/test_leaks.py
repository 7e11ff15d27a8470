"""Servers and clients that are used for long hold no more than before."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from headrace import Client
from support.clocks.waiting import wait_until
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import engine_server, gateway_server

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


def abort(client: Client, seed: int) -> None:
    """Begin an answer, and drop it somewhere: before its first token, or in the middle."""
    chance = random.Random(seed)
    length = chance.randrange(1, 60)
    text = client.generate("tiny", ids=[1 + chance.randrange(300) for _ in range(length)], ignore_eos=True, seed=seed)
    with text:
        for _ in range(chance.randrange(12)):
            next(text, None)


@pytest.mark.parametrize("streams", [160, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_bc103_aborted_streams_leave_nothing_behind(
    address: tuple[str, list[psutil.Process]], streams: int, tmp_path: Path
) -> None:
    """Sixteen at a time are dropped at random places; then a full batch has its answers, and all is as before."""
    where, processes = address
    with Client(where) as client, ThreadPoolExecutor(16) as pool:
        client.install_model("tiny", path=str(make_tiny_llama(tmp_path / "tiny")), max_batch=16, num_threads=1)
        client.start_model("tiny")
        list(pool.map(lambda seed: abort(client, seed), range(64)))
        wait_until(lambda: client.list_requests() == [], "aborted requests are kept")
        before = [(process.num_fds(), process.num_threads()) for process in processes]
        list(pool.map(lambda seed: abort(client, seed), range(streams)))
        wait_until(lambda: client.list_requests() == [], "aborted requests are kept")
        wait_until(lambda: client.engine_stats("tiny")[0].blocks_used == 0, "aborted requests hold blocks")
        after = [(process.num_fds(), process.num_threads()) for process in processes]
        assert all(
            end <= begin
            for ends, begins in zip(after, before, strict=True)
            for end, begin in zip(ends, begins, strict=True)
        ), after
        started = [client.start_request("tiny", ids=[i, 2, 3], max_new_tokens=32, ignore_eos=True) for i in range(16)]
        lengths = [sum(len(elements.ids_from_generate) for elements in queue) for _, queue in started]
        assert lengths == [32] * 16
