"""Measure what one API key's flood costs another: the latency of its requests, alone and beside the flood.

    make bench-flood          or       python -m bench.service.flood [--requests 20] [--no-write]

SmolLM2 in Q4_1 on the cpu backend, a gateway with API keys, real processes on loopback. One key sends a request after
the other, of 32 ids and 16 new ones, and measures each from its start to its first token and to its end. The flood has
a key of its own and comes from a process of its own, which takes the CPU that the others leave: 64 requests of the same
form at a time, each sent anew as soon as it has ended, or when the server says so where it was refused. It runs without
limits of its key, and with `concurrent_requests = 1`.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

from headrace import Client
from headrace.errors import OverloadedError
from headrace_gateway.access.api_keys import new_key
from support.servers.processes import engine_server, gateway_server

from bench.common.machine import cpu_name
from bench.common.models import BenchModels
from bench.common.page import FLOOD, measurement

MODEL = "smol"
IDS, NEW, AT_ONCE = 32, 16, 64
_BATCH = 8
FLOODS = {"alone": None, "beside a flood": "", "beside a flood, limited": "concurrent_requests = 1\n"}
"""Lines of the flood's key; None: there is no flood."""


@dataclass(frozen=True)
class Row:
    """Milliseconds to first tokens and to ends, of each request, beside one flood."""

    name: str
    first: list[float]
    whole: list[float]


def flood(address: str, key: str, over: Event) -> None:
    """Keep AT_ONCE requests in progress, in a process of its own."""
    os.nice(19)
    with Client(address, api_key=key) as client:
        threads = [threading.Thread(target=_flood_one, args=(client, over, number)) for number in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _flood_one(client: Client, over: Event, number: int) -> None:
    turn = 0
    while not over.is_set():
        turn += 1
        try:
            _request(client, 1000 * number + turn)
        except OverloadedError:
            continue  # after all the tries of the client, each at the time that the server named


def _request(client: Client, seed: int) -> tuple[float, float]:
    """Make one request. Return the seconds to its first token and to its end."""
    ids = [1 + (7 * seed + 11 * place) % 40_000 for place in range(IDS)]
    began = time.perf_counter()
    handle, queue = client.start_request(MODEL, ids=ids, max_new_tokens=NEW, do_sample=False, ignore_eos=True)
    queue.Get()
    first = time.perf_counter() - began
    for _ in queue:
        pass
    whole = time.perf_counter() - began
    client.release_request(handle)
    return first, whole


def measured(name: str, limits: str | None, requests: int) -> Row:
    """Measure one row."""
    with _serving(limits or "") as (address, keys), Client(address, api_key=keys["one"]) as client:
        over = multiprocessing.get_context("spawn").Event()
        process = multiprocessing.get_context("spawn").Process(target=flood, args=(address, keys["flood"], over))
        if limits is not None:
            process.start()
            time.sleep(5)
        try:
            found = [_request(client, 90_000 + number) for number in range(-2, requests)][2:]
        finally:
            over.set()
            if limits is not None:
                process.join()
    return Row(name, [1e3 * first for first, _ in found], [1e3 * whole for _, whole in found])


@contextmanager
def _serving(limits: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Run an engine and a gateway with two keys; yield its address, and the keys by name."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: new_key(name) for name in ("one", "flood")}
        file = Path(folder) / "keys.toml"
        file.write_text(f"{made['one'][1]}{made['flood'][1]}{limits}")
        model = ("--model", f"{MODEL}={BenchModels.chosen().packaged}", "--backend", "cpu")
        with (
            engine_server("e1", *model, "--max-batch", str(_BATCH), "--max-length", "256") as engine,
            gateway_server({"e1": engine.address}, "--keys", str(file)) as gateway,
        ):
            engine.wait_event("model_ready")
            gateway.wait_event("engine_reached")
            yield gateway.address, {name: key for name, (key, _) in made.items()}


def table(rows: list[Row]) -> str:
    """Return the section of the page."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [
        f"{date}. {cpu_name()}. Medians of {len(rows[0].whole)} requests, and their longest, in milliseconds.",
        "",
        "| requests of one key | first token | longest | end | longest | end, of alone |",
        "|---|---|---|---|---|---|",
    ]
    alone = median(rows[0].whole)
    for row in rows:
        figures = [median(row.first), max(row.first), median(row.whole), max(row.whole)]
        cells = " | ".join(f"{value:.0f}" for value in figures)
        lines.append(f"| {row.name} | {cells} | {median(row.whole) / alone:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page's section."""
    parser = measurement(__doc__)
    parser.add_argument("--requests", type=int, default=20)
    arguments = parser.parse_args()
    text = table([measured(name, limits, arguments.requests) for name, limits in FLOODS.items()])
    print(text)
    if arguments.write:
        FLOOD.write(text)


if __name__ == "__main__":
    main()
