"""Servers and clients that are used for long hold no more than before."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
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

MOST = 256 << 10
"""Bytes that each round of use may add."""

PROGRAM = """
import gc, json, os, sys
from headrace import Client
from support.servers.growth import ROUNDS, Growth

address, calls, clients, *servers = [sys.argv[1], *map(int, sys.argv[2:])]
growth, files = Growth([*servers, None]), []
for _ in range(ROUNDS):
    with Client(address) as client:
        for _ in range(calls):
            client.list_models()
    for _ in range(clients):
        with Client(address) as client:
            client.server_info()
    gc.collect()
    growth.read()
    files.append(len(os.listdir("/proc/self/fd")))
print(json.dumps({"grown": growth.least(), "files": files}))
"""


@pytest.fixture
def address() -> Iterator[tuple[str, list[psutil.Process]]]:
    """Of a gateway; with the processes of its servers."""
    with ExitStack() as stack:
        engine = stack.enter_context(engine_server("e1"))
        gateway = stack.enter_context(gateway_server({"e1": engine.address}))
        yield gateway.address, [psutil.Process(server.process.pid) for server in (engine, gateway)]


@pytest.mark.parametrize(
    ("calls", "clients"), [(100, 20), pytest.param(16_000, 500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_bc188_calls_and_clients_leave_nothing_behind(
    address: tuple[str, list[psutil.Process]], calls: int, clients: int
) -> None:
    """Neither at the servers nor in the process of the clients, where nothing else runs."""
    where, servers = address
    arguments = [where, str(calls), str(clients), *(str(server.pid) for server in servers)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    reported = subprocess.check_output([sys.executable, "-c", PROGRAM, *arguments], env=environment, text=True)
    found = json.loads(reported)
    assert max(found["grown"]) < MOST, found
    assert max(found["files"][1:]) <= found["files"][0] + 4, found


def abort(client: Client, seed: int) -> None:
    """Begin an answer, and drop it somewhere: before its first token, or in the middle."""
    chance = random.Random(seed)
    length = chance.randrange(1, 60)
    text = client.generate("tiny", ids=[1 + chance.randrange(300) for _ in range(length)], ignore_eos=True, seed=seed)
    with text:
        for _ in range(chance.randrange(12)):
            next(text, None)


def open_things(processes: list[psutil.Process]) -> list[int]:
    """The files and the threads of each process."""
    return [count for process in processes for count in (process.num_fds(), process.num_threads())]


@pytest.mark.parametrize("streams", [160, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_bc103_aborted_streams_leave_nothing_behind(
    address: tuple[str, list[psutil.Process]], streams: int, tmp_path: Path
) -> None:
    """Sixteen at a time are dropped at random places; then a full batch has its answers, and all is as before."""
    where, servers = address
    processes = [*servers, psutil.Process()]
    with Client(where) as client, ThreadPoolExecutor(16) as pool:
        client.install_model("tiny", path=str(make_tiny_llama(tmp_path / "tiny")), max_batch=16, num_threads=1)
        client.start_model("tiny")
        list(pool.map(lambda seed: abort(client, seed), range(64)))
        wait_until(lambda: client.list_requests() == [], "aborted requests are kept")
        before = open_things(processes)
        list(pool.map(lambda seed: abort(client, seed), range(streams)))
        wait_until(lambda: client.list_requests() == [], "aborted requests are kept")
        wait_until(lambda: client.engine_stats("tiny")[0].blocks_used == 0, "aborted requests hold blocks")
        # gRPC's pools grow under load, and let threads go that were idle for some time.
        wait_until(
            lambda: all(now <= then for now, then in zip(open_things(processes), before, strict=True)),
            "files or threads stay open",
        )
        started = [client.start_request("tiny", ids=[i, 2, 3], max_new_tokens=32, ignore_eos=True) for i in range(16)]
        lengths = [sum(len(elements.ids_from_generate) for elements in queue) for _, queue in started]
        assert lengths == [32] * 16
