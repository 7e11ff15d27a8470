"""Check and measure a crowd: 512 streams for ten minutes, half of them over HTTP and half over gRPC.

    make soak SECONDS=600     or        python -m bench.service.crowd [--seconds 600] [--no-write]

A real engine service with a scripted core (`scripted_engine.py`), a real gateway, and callers in processes of their
own. Each stream is one request after the other, of 20 to 200 tokens, so that requests begin and end all the time. Then,
while the streams go on, other callers start far more than the engine takes, without retries. The run fails unless

- every id, or the whole text over HTTP, is that of consecutive steps, and every request has as many as it asked for;
- nothing is answered but results, and refusals that say when to come back: 429 with Retry-After over HTTP,
  RESOURCE_EXHAUSTED with RetryInfo over gRPC; and some of both are refused in the flood;
- the resident memory of each server grows by LIMIT_MIB at most between the first third of the run and its last, plus
  LIMIT_KIB for each request (by contract, an engine and a gateway know its key for ten minutes);
- open files at the end of the streams are at most LIMIT_FILES more than in the first third, and after the callers have
  left no more than before they came; and no request is left.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import mean

import psutil
from headrace import Client
from support.clocks.waiting import wait_until
from support.servers.books import balanced

from bench.common.environment import STEP_SECONDS, variable_set
from bench.common.machine import cpu_seconds
from bench.common.page import CROWD, RESULTS, measurement
from bench.service.__main__ import Servers, running_servers
from bench.service.crowd_callers import LONGEST, Findings, Part, flood, read_grpc, read_http
from bench.service.readers import MODEL
from bench.service.scripted_engine import CYCLE, id_of

STREAMS, WAITING, FLOOD = 512, 64, 128
"""Streams of both kinds together; requests that may wait; requests of each kind that the flood starts at once."""

STEP = 0.25
"""Seconds of a step where none are given: two thousand tokens a second, for two cores and callers on them."""

LIMIT_MIB, LIMIT_KIB, LIMIT_FILES = 8.0, 1.0, 8

_JSON = RESULTS / "crowd.json"


@dataclass
class Trace:
    """What was read of the servers' processes, from time to time.

    Attributes:
        resident: MiB of each process.
        files: open files of each process.
    """

    resident: dict[str, list[float]] = field(default_factory=dict)
    files: dict[str, list[int]] = field(default_factory=dict)

    def take(self, processes: dict[str, psutil.Process]) -> None:
        """Read all once."""
        for name, process in processes.items():
            self.resident.setdefault(name, []).append(process.memory_info().rss / 2**20)
            self.files.setdefault(name, []).append(process.num_fds())

    def growth(self, name: str) -> float:
        """Return the MiB by which the last third of the readings exceeds the first, of which the start is left out."""
        values = self.resident[name]
        third = max(1, len(values) // 3)
        return mean(values[-third:]) - mean(values[third // 2 : third + third // 2] or values)

    def more_files(self, name: str) -> int:
        """Return by how many the last reading of open files exceeds the most of the first third."""
        values = self.files[name]
        return values[-1] - max(values[: max(1, len(values) // 3)])


@dataclass
class Result:
    """A run."""

    seconds: float
    trace: Trace
    streams: list[Findings]
    flooded: Findings
    cpu_us: dict[str, float]
    tokens: int

    @property
    def requests(self) -> int:
        """Number of requests, refused ones too."""
        return sum(one.requests + one.refused for one in (*self.streams, self.flooded))


def main() -> int:
    """Run, print and write. Return 1 if anything is wrong."""
    parser = measurement(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds of the streams; default %(default)g")
    parser.add_argument("--step", type=float, default=STEP, help="seconds of a step; default %(default)g")
    arguments = parser.parse_args()
    with (
        variable_set(STEP_SECONDS, str(arguments.step)),
        running_servers(  # Prompts take no time beside a step.
            *("--step-target", "0"),
            max_batch=STREAMS,
            max_length=LONGEST + 56,
            max_waiting=WAITING,
            speculation="OFF",
        ) as servers,
    ):
        result, left = run(servers, arguments.seconds)
    wrong = [*problems(result), *left]
    text = text_of(result)
    print(text, *wrong, sep="\n")
    if arguments.write and not wrong:
        CROWD.write(text)
        _JSON.write_text(json.dumps({"seconds": result.seconds, **vars(result.trace)}) + "\n", encoding="utf-8")
    return int(bool(wrong))


def run(servers: Servers, seconds: float) -> tuple[Result, list[str]]:
    """Let the crowd read, then flood the servers too. Return the result, and what was left afterwards."""
    processes = {name: psutil.Process(pid) for name, pid in servers.pids().items()}
    with Client(servers.gateway.address) as client:
        pieces = client.detokenize(MODEL, [id_of(step) for step in range(CYCLE)], skip_special_tokens=False).pieces
    idle = {name: process.num_fds() for name, process in processes.items()}
    half = STREAMS // 2
    parts = [Part(servers.http, servers.gateway.address, half, first, pieces) for first in (0, half)]
    with callers([(read_http, parts[0]), (read_grpc, parts[1])]) as streams:
        trace, cpu, tokens = watched(servers, processes, seconds)
        more = Part(servers.http, servers.gateway.address, FLOOD, STREAMS, [])
        with callers([(flood, more)]) as flooding:
            time.sleep(min(20.0, seconds / 4))
            flooded = stopped(flooding)[0]
        found = stopped(streams)
    return Result(seconds, trace, found, flooded, cpu, tokens), left_over(servers, processes, idle)


def watched(
    servers: Servers, processes: dict[str, psutil.Process], seconds: float
) -> tuple[Trace, dict[str, float], int]:
    """Read memory and files for some seconds. Return them, CPU microseconds a token, and the tokens."""
    trace, begin = Trace(), time.monotonic_ns()
    before = {name: cpu_seconds(process.pid) for name, process in processes.items()}
    for _ in range(60):
        time.sleep(seconds / 60)
        for server in (servers.engine, servers.gateway):
            server.check()
        trace.take(processes)
    end = time.monotonic_ns()
    spent = {name: cpu_seconds(process.pid) - before[name] for name, process in processes.items()}
    tokens = sum(step.tokens for step in servers.steps().values() if begin <= step.time < end)
    return trace, {name: used / max(1, tokens) * 1e6 for name, used in spent.items()}, tokens


@contextmanager
def callers(
    wanted: list[tuple[Callable[[Connection, Part], None], Part]],
) -> Iterator[list[tuple[multiprocessing.process.BaseProcess, Connection]]]:
    """Run processes that call, each with its pipe; they have begun."""
    context = multiprocessing.get_context("spawn")
    running = []
    try:
        for target, part in wanted:
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs, part), daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        for _, pipe in running:
            pipe.recv()
        yield list(running)
    finally:
        for process, _ in running:
            process.join(30)
            process.terminate()


def stopped(running: list[tuple[multiprocessing.process.BaseProcess, Connection]]) -> list[Findings]:
    """Stop processes that call; return what each found."""
    for _, pipe in running:
        pipe.send("stop")
    return [pipe.recv() for _, pipe in running]


def left_over(servers: Servers, processes: dict[str, psutil.Process], idle: dict[str, int]) -> list[str]:
    """Return what is left of callers that have gone."""
    try:
        with Client(servers.engine.address) as client:
            wait_until(lambda: balanced(client) and not client.list_requests(), "the engine holds requests")
        for name, process in processes.items():
            wait_until(lambda: process.num_fds() <= idle[name] + 1, f"{name} has files open", 90)  # noqa: B023
    except AssertionError as error:
        return [str(error)]
    return []


def problems(result: Result) -> list[str]:
    """Return what is wrong, as text for people."""
    found = [text for one in (*result.streams, result.flooded) for text in one.texts]
    if not all(one.requests for one in result.streams):
        found.append("streams ended no request: there was too little time")
    if not result.flooded.refused:
        found.append("nothing was refused")
    allowed = LIMIT_MIB + LIMIT_KIB / 1024 * result.requests
    for name in result.trace.resident:
        if (growth := result.trace.growth(name)) > allowed:
            found.append(f"the memory of {name} has grown by {growth:.1f} MiB; allowed: {allowed:.1f}")
        if (more := result.trace.more_files(name)) > LIMIT_FILES:
            found.append(f"{name} has {more} more files open; allowed: {LIMIT_FILES}")
    return found


def text_of(result: Result) -> str:
    """Return the section of the page."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    http, grpc = result.streams
    errors = http.errors + grpc.errors + result.flooded.errors
    lines = [
        f"{date}, {STREAMS} streams for {result.seconds:.0f} s: {result.tokens:,} tokens, {http.requests:,} requests "
        f"over HTTP and {grpc.requests:,} over gRPC; in the flood {result.flooded.requests:,} were answered and "
        f"{result.flooded.refused:,} refused with a time to come back. Errors: {errors}.",
        "",
        "| process | CPU µs a token | MiB at the beginning | at the end | growth | open files |",
        "|---|---|---|---|---|---|",
    ]
    for name, values in result.trace.resident.items():
        sizes = f"{values[len(values) // 6]:.1f} | {values[-1]:.1f} | {result.trace.growth(name):+.1f}"
        lines.append(f"| {name} | {result.cpu_us[name]:.1f} | {sizes} | {result.trace.files[name][-1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
