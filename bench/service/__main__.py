"""Measure what serving costs beside computing: an engine service with a scripted core, a gateway, and clients.

    make bench-service        or        python -m bench.service [--seconds 10] [--no-write]

256 requests are in flight, and 50 times a second the core gives each of them one token. They are read over 1, 4 and 64
client sessions (the 64 are in 4 processes, 16 each; the others have a process each), all through one gateway, once
over one session straight from the engine, and once as 256 streams of events over HTTP. Everything is a real process on
loopback; the scripted core is the real core
with a runner that waits (`scripted_engine.py`), and the clients check that every id is the one that its step gave.

Measured over some seconds in which nothing begins or ends:

- CPU microseconds a token of the engine service (without its core), of the core, of the gateway, and of all clients
  together, from /proc/PID/stat. Clients count with what their readers do: a `Get` and a tally for every token.
- Added latency: from the moment at which the runner hands a step out, to the moment at which a thread that waits in
  `Get` of a session's first queue has that step's token; the session's other queues have theirs then, as a step comes
  in one message. The core's own work after the runner is in it. One sample a step and session.
- Read: the same until that thread has read all queues of the session.

Both ends of a latency are CLOCK_MONOTONIC on this machine; the token says of which step it is. Results go to
`bench/results/service.json`, and as a table to `bench/results/service.md`.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from headrace import Client
from support.servers.books import release_all
from support.servers.processes import ANY_ROOT, Server, gateway_server, running

from bench.common.environment import STEPS, variable_set
from bench.common.machine import cpu_seconds, measure
from bench.common.models import BenchModels
from bench.common.page import measurement
from bench.service.http_readers import read_http
from bench.service.readers import LENGTH, MODEL, Readings, Share, read
from bench.service.report import Row, Run, print_run, write_run
from bench.service.scripted_engine import PROGRAM, STAMP, id_of

REQUESTS = 256


@dataclass(frozen=True)
class Scenario:
    """The clients that read.

    Attributes:
        sessions: number of sessions of all processes together.
        http: a connection for each request instead, over HTTP; without latencies.
    """

    sessions: int
    processes: int
    direct: bool = False
    http: bool = False

    def shares(self, address: str) -> list[Share]:
        """Return the share of each process."""
        of_process = REQUESTS // self.processes
        sessions = self.sessions // self.processes
        return [
            Share(address, number * of_process, sessions, of_process // sessions) for number in range(self.processes)
        ]


SCENARIOS = (
    Scenario(1, 1),
    Scenario(4, 4),
    Scenario(64, 4),
    Scenario(1, 1, direct=True),
    Scenario(1, 1, http=True),
)


@dataclass(frozen=True)
class Step:
    """One step of the core: when the runner returned it, in nanoseconds, and its number of tokens."""

    time: int
    tokens: int


@dataclass(frozen=True)
class Servers:
    """The servers, the gateway's address of HTTP, and the file in which the core records its steps."""

    engine: Server
    gateway: Server
    http: str
    steps_file: Path

    def steps(self) -> dict[int, Step]:
        """Return all steps so far, by the id that they gave."""
        data = self.steps_file.read_bytes()
        return {
            id_of(number): Step(at, tokens)
            for number, at, tokens in STAMP.iter_unpack(data[: len(data) // STAMP.size * STAMP.size])
        }

    def pids(self) -> dict[str, int]:
        """Return the ids of the servers' processes, by name."""
        engine = self.engine.process.pid
        (core,) = psutil.Process(engine).children()
        return {"engine": engine, "core": core.pid, "gateway": self.gateway.process.pid}


def main() -> None:
    """Measure, print and write the results."""
    parser = measurement(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each scenario; default %(default)g")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with running_servers() as servers:
        limits = measure(servers.gateway.address, load)
        rows = [measured(servers, scenario, arguments.seconds) for scenario in SCENARIOS]
    run = Run(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), limits, rows)
    print_run(run)
    if arguments.write:
        write_run(run)


@contextmanager
def running_servers(*arguments: str, **config: Any) -> Iterator[Servers]:
    """Run a scripted engine with its model, and a gateway in front of it.

    Args:
        arguments: more of the engine.
        config: fields of the model's config, where they are not those of the measured clients.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        steps_file = Path(folder) / "steps"
        line = ("-m", PROGRAM, "--name", "e1", "--listen", "127.0.0.1:0", *ANY_ROOT, *arguments)
        with variable_set(STEPS, steps_file):
            engine = stack.enter_context(running(*line))
        gateway = stack.enter_context(gateway_server({"e1": engine.address}, "--http", "127.0.0.1:0"))
        http = gateway.wait_event("listening")["http"]
        with Client(gateway.address) as client:
            fields: dict[str, Any] = {"max_batch": REQUESTS, "max_length": LENGTH + 8, **config}
            client.install_model(MODEL, path=str(BenchModels.chosen().packaged), **fields)
            client.start_model(MODEL)
        yield Servers(engine, gateway, http, steps_file)


def measured(servers: Servers, scenario: Scenario, seconds: float) -> Row:
    """Let a scenario's clients read, and measure for some seconds."""
    address = servers.http if scenario.http else (servers.engine if scenario.direct else servers.gateway).address
    with readers(scenario.shares(address), read_http if scenario.http else read) as reading:
        pids = servers.pids() | {f"client {number}": pid for number, (pid, _) in enumerate(reading)}
        begin, before = time.monotonic_ns(), {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        end, after = time.monotonic_ns(), {name: cpu_seconds(pid) for name, pid in pids.items()}
        for _, pipe in reading:
            pipe.send("stop")
        readings = [one for _, pipe in reading for one in pipe.recv()]
    with Client(servers.engine.address) as client:
        release_all(client)
    steps = {token_id: step for token_id, step in servers.steps().items() if begin <= step.time < end}
    spent = {name: after[name] - before[name] for name in pids}
    if not scenario.http:
        return row(scenario, steps, spent, readings, (end - begin) / 1e9)
    looks = [look for one in readings for look in zip(one.arrived, one.tokens, strict=True) if begin <= look[0] < end]
    found = row(scenario, steps, spent, [], (end - begin) / 1e9)
    events = sum(count for _, count in looks)
    return replace(found, steps_seen=events / sum(step.tokens for step in steps.values()))


@contextmanager
def readers(shares: list[Share], target: Callable[[Connection, Share], None]) -> Iterator[list[tuple[int, Connection]]]:
    """Run processes that read; yield each with its id and its end of a pipe, once all have begun."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in shares]
    processes = [
        context.Process(target=target, args=(theirs, share), daemon=True)
        for (_, theirs), share in zip(pipes, shares, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()
        for ours, _ in pipes:
            ours.recv()
        yield [(process.pid or 0, ours) for process, (ours, _) in zip(processes, pipes, strict=True)]
    finally:
        for process in processes:
            process.join(30)
            process.terminate()


def row(
    scenario: Scenario, steps: dict[int, Step], spent: dict[str, float], readings: list[Readings], seconds: float
) -> Row:
    """Return the results, per token and per step."""
    tokens = sum(step.tokens for step in steps.values())
    costs = {name: spent[name] / tokens * 1e6 for name in ("engine", "core", "gateway")}
    clients = sum(cpu for name, cpu in spent.items() if name.startswith("client"))
    looks = [look for one in readings for look in zip(one.ids, one.arrived, one.read, strict=True) if look[0] in steps]
    return Row(
        sessions=scenario.sessions,
        processes=scenario.processes,
        direct=scenario.direct,
        http=scenario.http,
        tokens_per_second=tokens / seconds,
        steps_seen=len(looks) / (len(steps) * scenario.sessions),
        cpu_us={**costs, "client": clients / tokens * 1e6},
        added_ms=[(arrived - steps[token_id].time) / 1e6 for token_id, arrived, _ in looks],
        read_ms=[(done - steps[token_id].time) / 1e6 for token_id, _, done in looks],
    )


if __name__ == "__main__":
    main()
