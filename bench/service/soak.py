"""Measure memory over thousands of requests: a tiny model on the cpu backend, an engine and a gateway.

    make bench-soak           or       python -m bench.service.soak [--requests 8000] [--no-write]

Everything is a real process. Requests come eight at a time from one client after the other, each with ROUND of them:
texts and chats of changing length, greedy and drawn, some with log-probabilities, some stopped halfway. After each
client the resident memory of engine, core and gateway is read. The first FIRST requests fill caches and pools; from
then on the growth is the slope of the line through what was read. What was released is known by its key for ten
minutes, by contract, and is part of it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
from headrace import Client
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import Server, core_of, engine_server, gateway_server

from bench.common.page import RESULTS, SOAK, measurement

MODEL = "tiny"
ROUND, FIRST, AT_ONCE = 500, 2_000, 8
LIMIT_KIB = 1024
"""Maximum growth in KiB per thousand requests."""

_JSON = RESULTS / "soak.json"
_WORDS = ("the", "water", "wheel", "turns", "why", "is", "sky", "blue", "a", "river", "lamp", "batch", "of", "city")


@dataclass(frozen=True)
class Reading:
    """Memory readings.

    Attributes:
        requests: number of requests at each reading.
        resident: KiB of each process at each reading.
    """

    requests: list[int] = field(default_factory=list)
    resident: dict[str, list[float]] = field(default_factory=dict)

    def take(self, requests: int, processes: dict[str, psutil.Process]) -> None:
        """Record the memory of all processes."""
        self.requests.append(requests)
        for name, process in processes.items():
            self.resident.setdefault(name, []).append(process.memory_info().rss / 1024)

    def growth(self, name: str) -> float:
        """Return the growth in KiB per thousand requests, after the first."""
        points = [pair for pair in zip(self.requests, self.resident[name], strict=True) if pair[0] >= FIRST]
        count, mean = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
        return sum((x - count) * (y - mean) for x, y in points) / sum((x - count) ** 2 for x, _ in points) * 1000


def main() -> int:
    """Measure, print and write the results. Return 1 if a process grows more than it may."""
    parser = measurement(__doc__)
    parser.add_argument("--requests", type=int, default=8_000, help="number of requests; default %(default)s")
    arguments = parser.parse_args()
    began, reading = time.monotonic(), Reading()
    with servers() as (gateway, processes):
        for done in range(0, arguments.requests, ROUND):
            use(gateway.address, done)
            reading.take(done + ROUND, processes)
            print(done + ROUND, {name: round(values[-1]) for name, values in reading.resident.items()}, flush=True)
    text = _text(reading, time.monotonic() - began)
    print(text)
    if arguments.write:
        SOAK.write(text)
        _JSON.write_text(json.dumps(vars(reading), indent=2) + "\n", encoding="utf-8")
    return int(any(reading.growth(name) > LIMIT_KIB for name in reading.resident))


@contextmanager
def servers() -> Iterator[tuple[Server, dict[str, psutil.Process]]]:
    """Run a gateway in front of an engine with the model; yield them and the measured processes."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = make_tiny_llama(Path(folder) / "model")
        engine = stack.enter_context(engine_server("e1", "--backend", "cpu"))
        gateway = stack.enter_context(gateway_server({"e1": engine.address}))
        with Client(gateway.address) as client:
            client.install_model(MODEL, path=str(path), max_batch=16, max_length=256)
            client.start_model(MODEL)
        pids = {"engine": engine.process.pid, "core": core_of(engine).pid, "gateway": gateway.process.pid}
        yield gateway, {name: psutil.Process(pid) for name, pid in pids.items()}


def use(address: str, first: int) -> None:
    """Run ROUND requests of one client."""
    with Client(address) as client, ThreadPoolExecutor(AT_ONCE) as threads:
        for done in [threads.submit(_ask, client, number) for number in range(first, first + ROUND)]:
            done.result()


def _ask(client: Client, number: int) -> None:
    random = Random(number)
    text = " ".join(random.choice(_WORDS) for _ in range(random.randrange(1, 40)))
    fields: dict[str, Any] = {"max_new_tokens": random.randrange(1, 24), "ignore_eos": True}
    if number % 3:
        fields |= {"temperature": 1.2, "top_p": 0.95, "seed": number}
    else:
        fields["do_sample"] = False
    if number % 5 == 0:
        fields |= {"logprobs": True}
    prompt: dict[str, Any] = {"text": text} if number % 2 else {"messages": [{"role": "user", "content": text}]}
    handle, queue = client.start_request(MODEL, **prompt, **fields)
    if number % 11 == 0:
        client.stop_request(handle)
    for _ in queue:
        pass
    client.release_request(handle)


def _text(reading: Reading, seconds: float) -> str:
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [
        f"{date}, {reading.requests[-1]:,} requests in {seconds:.0f} s.",
        "",
        f"| process | MiB after {FIRST:,} | MiB at the end | KiB a thousand requests |",
        "|---|---|---|---|",
    ]
    begin = reading.requests.index(FIRST)
    for name, values in reading.resident.items():
        lines.append(f"| {name} | {values[begin] / 1024:.1f} | {values[-1] / 1024:.1f} | {reading.growth(name):+.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
