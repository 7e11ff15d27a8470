"""Measure what long prompts cost others: first tokens of short requests, and gaps of running streams.

    make bench-scheduling     or       python -m bench.scheduling [--before CHECKOUT] [--simulate] [--no-write]

Measures what steps of SmolLM2 take here, simulates the step schedulers of vLLM, SGLang and Headrace at that cost, and
puts an engine under the same load: four streams, two prompts of 8,000 ids, a short request each second. With a checkout
of an earlier commit its engine is measured too. Writes a section of results/scheduling.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
from headrace import Client, RequestReleasedError, ResultQueue
from headrace_engine.core.runner import Runner, SequenceStep
from headrace_engine.process import make_runner
from headrace_engine.sampling_params import SamplingParams
from support.backends.runners import plan_for, ready
from support.models.text_accuracy import smollm2
from support.servers.processes import Server

from bench.common.machine import cpu_name
from bench.common.page import SCHEDULING, measurement
from bench.scheduling.step_schedulers import Costs, contestants, simulate

_GREEDY = SamplingParams(temperature=0)
_LIMIT = 180.0
"""Maximum seconds for the long prompts."""

_LONG = 2
"""Long prompts."""

_OPEN = 8
"""Maximum short requests that wait for their first token at once."""


def main() -> None:
    """Measure, and write the results."""
    parser = measurement(__doc__)
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit, installed (make .venv/.installed)")
    parser.add_argument("--simulate", action="store_true", help="only simulate; measure no engine")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    costs = measured_costs()
    parts = [_machine(load), _costs(costs), _table("simulated", _simulated(costs))]
    if not given.simulate:
        trees = [("before", given.before), ("now", None)] if given.before else [("now", None)]
        parts.append(_table("measured", [(name, *_measured(tree)) for name, tree in trees]))
    text = "\n\n".join(parts)
    print(text)
    if given.write:
        SCHEDULING.write(text)


def measured_costs() -> Costs:
    """Measure the cost of steps of SmolLM2 here: medians of a few."""
    runner = ready(make_runner(plan_for(smollm2(), num_threads=0, max_batch=16, max_length=8192, num_blocks=1024)))
    try:
        one, four = (_seconds(runner, [(100, 1)] * rows) for rows in (1, 4))
        near, far = (_seconds(runner, [(start, 512)]) for start in (0, 6000))
    finally:
        runner.close()
    row = max(0.0, (four - one) / 3)
    step = one - row
    pair = max(0.0, (far - near) / 512 / 6000)
    return Costs(step, row, (near - step) / 512 - pair * 256, pair)


def _seconds(runner: Runner, rows: list[tuple[int, int]]) -> float:
    """Return the seconds of a step with these rows: each computes the second number of ids after the first."""
    random, blocks, steps = Random(1), iter(range(1024)), []
    for start, count in rows:
        table = [next(blocks) for _ in range(-(-(start + count) // 16))]
        steps.append(SequenceStep([random.randrange(100, 40_000) for _ in range(count)], start, table, _GREEDY))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        runner.run(steps)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _simulated(costs: Costs) -> Iterator[tuple[str, list[float], list[float], list[float]]]:
    for name, step in contestants(costs):
        requests = simulate(step, costs)
        first = {
            kind: [each.times[0] - each.arrival for each in requests if each.kind == kind] for kind in ("short", "long")
        }
        until = max(each.times[0] for each in requests if each.kind == "long")
        streams = [each for each in requests if each.kind == "stream"]
        gaps = [b - a for each in streams for a, b in pairwise(each.times) if b >= 1.0 and a <= until]
        yield name, first["short"], first["long"], gaps


def _measured(tree: Path | None) -> tuple[list[float], list[float], list[float]]:
    """Measure first tokens of short and long requests, and gaps of streams, in seconds."""
    with _engine(tree) as server, Client(server.address) as client:
        client.start_model("smol")
        random, over = Random(2), threading.Event()

        def begin(length: int, new: int) -> ResultQueue:
            ids = [random.randrange(100, 40_000) for _ in range(length)]
            return client.start_request("smol", ids=ids, max_new_tokens=new, ignore_eos=True)[1]

        streams, gaps = [begin(20, 8000) for _ in range(4)], list[float]()
        for stream in streams:
            stream.Get()
        readers = [threading.Thread(target=_read_gaps, args=(stream, gaps, over)) for stream in streams]
        short, long, waiting = list[float](), list[float](), list[threading.Thread]()
        for reader in readers:
            reader.start()
        time.sleep(1.0)
        for _ in range(_LONG):
            waiting.append(_timed(begin, 8000, 4, long))
            time.sleep(0.5)
        began, others = time.monotonic(), list[threading.Thread]()
        while len(long) < _LONG and time.monotonic() < began + _LIMIT:
            if sum(thread.is_alive() for thread in others) < _OPEN:
                others.append(_timed(begin, 100, 20, short))
            time.sleep(1.0)
        over.set()
        for queue in streams:
            client.stop_request(queue.handle)
        for thread in (*readers, *waiting):
            thread.join(30)
    return short, long, gaps


def _timed(begin: object, length: int, new: int, times: list[float]) -> threading.Thread:
    def wait() -> None:
        began = time.monotonic()
        queue = begin(length, new)  # type: ignore[operator]
        with suppress(RequestReleasedError):  # The measurement has ended before it began to answer.
            queue.Get()
            times.append(time.monotonic() - began)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def _read_gaps(queue: ResultQueue, gaps: list[float], over: threading.Event) -> None:
    last = time.monotonic()
    while queue.Get() is not None and not over.is_set():
        now = time.monotonic()
        gaps.append(now - last)
        last = now


@contextmanager
def _engine(tree: Path | None) -> Iterator[Server]:
    """Run an engine of this tree, or of the environment that `make` created in another one."""
    python = sys.executable if tree is None else str(tree.resolve() / ".venv" / "bin" / "python")
    line = [python, "-m", "headrace_engine", "--name", "e1", "--listen", "127.0.0.1:0", "--backend", "cpu"]
    with subprocess.Popen([*line, "--model", f"smol={smollm2()}"], stderr=subprocess.PIPE, text=True) as process:
        server = Server(process)
        follower = threading.Thread(target=server.follow, daemon=True)
        follower.start()
        try:
            server.wait_event("listening")
            yield server
        finally:
            server.stop()
            follower.join(_LIMIT)


def _machine(load: float) -> str:
    return f"{cpu_name()}, {len(os.sched_getaffinity(0))} processors, {date.today()}, load average before {load:.1f}."


def _costs(costs: Costs) -> str:
    milli = [1000 * each for each in (costs.step, costs.row, costs.token)]
    return (
        f"A step takes {milli[0]:.1f} ms, each stream in it {milli[1]:.2f} ms, each id of a prompt {milli[2]:.2f} ms "
        f"and {1e9 * costs.pair:.0f} ns for each id before it."
    )


def _table(how: str, rows: object) -> str:
    head = "first token of short requests p50 | p99 | of the long ones, last | gap of streams p50 | p99 | longest"
    lines = [f"| {how}, seconds | {head} |", "|---|" + "---:|" * 6]
    for name, short, long, gaps in rows:  # type: ignore[attr-defined]
        last = f"{max(long):.3g}" if len(long) == _LONG else f"above {_LIMIT:.0f}"
        others = [f"{each:.3g}" for each in (*_percentiles(short), *_percentiles(gaps), max(gaps))]
        lines.append(f"| {' | '.join([name, *others[:2], last, *others[2:]])} |")
    return "\n".join(lines)


def _percentiles(seconds: list[float]) -> list[float]:
    return [float(each) for each in np.percentile(seconds or [float("nan")], [50, 99])]


if __name__ == "__main__":
    main()
