"""Measure how others' long prompts and guided decoding disturb streams: gaps between tokens that reach a client.

    make bench-streams        or       python -m bench.scheduling.streams [--seconds 8] [--no-write]

An engine with SmolLM2 as its own process answers 16 requests without end; health is asked all along. Meanwhile another
process sends prompts of 1 MB, two a second: far too long for the model, which shows only once they are tokenised. Then,
of 16 requests, none, one and all are guided. Writes a section of results/scheduling.md.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from headrace import Client, ResultQueue
from support.servers.processes import Server, engine_server, health_of

from bench.common.models import BenchModels
from bench.common.page import STREAMS, measurement

COUNT = 16
"""Number of streams."""

LONGEST = 2000
"""Tokens of one answer: more than are generated in the time."""

SENDER = """
import sys, time
from headrace import Client, InvalidRequestError
address, kind = sys.argv[1:]
text = "The mill stood by the stream, and its wheel turned day and night. " * 15_900
prompt = {"messages": [{"role": "user", "content": text}]} if kind == "chat" else {"prompt": text}
with Client(address) as client:
    while True:
        begin = time.monotonic()
        try:
            client.start_request("smol", max_new_tokens=1, **prompt)
        except InvalidRequestError as error:
            assert error.reason == "PROMPT_TOO_LONG", error
        print(flush=True)
        time.sleep(max(0.0, begin + 0.5 - time.monotonic()))
"""

GUIDED: dict[str, Any] = {"response_format": {"type": "regex", "regex": "([a-z]{1,9} )*"}}


@dataclass
class Seen:
    """Milliseconds between tokens of streams, and of health checks."""

    gaps: list[float] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)


def main() -> None:
    """Measure, and write the results."""
    parser = measurement(__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="seconds of each part")
    given = parser.parse_args()
    seconds = given.seconds
    with (
        engine_server("e1", "--backend", "cpu", "--model", f"smol={BenchModels.chosen().packaged}") as server,
        Client(server.address) as client,
    ):
        client.start_model("smol")
        rows = [_prompts(server, client, kind, seconds) for kind in ("none", "text", "chat")]
        first = _watch(server, client, seconds / 2, [{}] * COUNT, lambda: _one_guided(client))
        guided = [_guided(server, client, count, seconds / 2) for count in (0, 1, COUNT)]
    text = _table(rows, first, guided)
    print(text)
    if given.write:
        STREAMS.write(text)


def _prompts(server: Server, client: Client, kind: str, seconds: float) -> tuple[str, Seen, int]:
    if kind == "none":
        return "no prompts", _watch(server, client, seconds, [{}] * COUNT), 0
    command = [sys.executable, "-c", SENDER, server.address, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        sender.stdout.readline()  # It has begun.
        seen = _watch(server, client, seconds, [{}] * COUNT)
        sender.terminate()
        count = len(sender.stdout.read().splitlines())
    return f"1 MB as {kind}", seen, count


def _guided(server: Server, client: Client, count: int, seconds: float) -> tuple[int, Seen]:
    return count, _watch(server, client, seconds, [GUIDED] * count + [{}] * (COUNT - count))


def _one_guided(client: Client) -> None:
    list(client.start_request("smol", "One", max_new_tokens=4, **GUIDED)[1])


def _watch(
    server: Server,
    client: Client,
    seconds: float,
    configs: list[dict[str, Any]],
    meanwhile: Callable[[], None] | None = None,
) -> Seen:
    seen, over = Seen(), threading.Event()
    started = [
        client.start_request(
            "smol", f"Once upon a time {number}", max_new_tokens=LONGEST, temperature=1.0, seed=number, ignore_eos=True,
            **config,
        )
        for number, config in enumerate(configs)
    ]  # fmt: skip
    for _, queue in started:
        queue.Get()
    threads = [threading.Thread(target=_read, args=(queue, seen.gaps, over)) for _, queue in started]
    threads.append(threading.Thread(target=_check, args=(server.address, seen.checks, over)))
    for thread in threads:
        thread.start()
    if meanwhile is not None:
        meanwhile()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    for handle, _ in started:
        client.release_request(handle)
    return seen


def _read(queue: ResultQueue, gaps: list[float], over: threading.Event) -> None:
    last = time.perf_counter()
    while not over.is_set() and queue.Get() is not None:
        now = time.perf_counter()
        gaps.append(1000 * (now - last))
        last = now


def _check(address: str, checks: list[float], over: threading.Event) -> None:
    while not over.wait(0.05):
        begin = time.perf_counter()
        assert health_of(address) == "SERVING"
        checks.append(1000 * (time.perf_counter() - begin))


def _shown(values: list[float]) -> str:
    p50, p99, most = np.percentile(values, [50, 99, 100])
    return f"{p50:.1f} | {p99:.1f} | {most:.0f}"


def _table(rows: list[tuple[str, Seen, int]], first: Seen, guided: list[tuple[int, Seen]]) -> str:
    lines = [
        "| meanwhile | prompts | gap p50 | p99 | longest | health p50 | p99 | longest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(f"| {name} | {count} | {_shown(seen.gaps)} | {_shown(seen.checks)} |" for name, seen, count in rows),
        f"| the first guided request | | {_shown(first.gaps)} | {_shown(first.checks)} |",
        *(f"| {count} of {COUNT} guided | | {_shown(seen.gaps)} | {_shown(seen.checks)} |" for count, seen in guided),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
