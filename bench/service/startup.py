"""How long a model takes until it serves: SmolLM2, from the start of the program, with nothing cached and from cache.

    make bench-startup        or       python -m bench.service.startup [--rounds 5] [--no-write]

Each round starts `headrace-engine --model` twice with a cache folder of its own: first it is empty, then it holds the
packed weights. Files of the model and of Python are in the system's memory. The phases are read from the times of the
log: the service listens; the model's files and tokenizer are read; its core, which began with the service, has imported
its backend and read the header; the weights are in memory; the warm-up is over and the model is RUNNING. Progress is
logged at most every 0.1 s. Cores that others used meanwhile stand beside each row.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from headrace_engine.environment import CACHE_VARIABLE
from support.servers.processes import Server, running

from bench.common.environment import variable_set
from bench.common.machine import cpu_name
from bench.common.models import BenchModels
from bench.common.page import STARTUP, measurement
from bench.common.quietness import Quietness

PHASES = ("service listens", "files and tokenizer", "core begins to load", "weights in memory", "warm-up")
_WEIGHTS_DONE = ("ALLOCATING", "WARMING_UP")


@dataclass
class Starts:
    """Results of one kind of start: seconds of each phase by round, and the CPU cores that others used."""

    name: str
    phases: list[tuple[float, ...]] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Return medians as a row of the table, of each phase and of their sum."""
        middles = [median(phase) for phase in zip(*self.phases, strict=True)]
        total = median(map(sum, self.phases))
        cells = [*(f"{seconds:.2f}" for seconds in middles), f"**{total:.2f}**", f"{median(self.disturbed):.2f}"]
        return f"| {self.name} | {' | '.join(cells)} |"


def measured(rounds: int, quietness: Quietness) -> list[Starts]:
    """Measure a number of starts of each kind, in turns."""
    kinds = [Starts("nothing cached"), Starts("from cache")]
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, variable_set(CACHE_VARIABLE, folder):
            for kind in kinds:
                quietness.wait()
                phases, others = _start(quietness)
                kind.phases.append(phases)
                kind.disturbed.append(others)
            _check_cached(Path(folder))
    return kinds


def _start(quietness: Quietness) -> tuple[tuple[float, ...], float]:
    """Return the seconds of each phase of one start, and the CPU cores that others used."""
    settings = ("--model", f"smol={BenchModels.chosen().packaged}", "--set", "max_length=2048")

    def start() -> list[float]:
        server = stack.enter_context(running("-m", "headrace_engine", "--listen", "127.0.0.1:0", *settings))
        server.wait_event("model_ready", 120)
        return list(_times(server))

    with ExitStack() as stack:  # The server must be alive for its own CPU time to be read.
        began = time.time()
        times, others = quietness.watched(start)
    return tuple(after - before for before, after in pairwise([began, *times])), others


def _times(server: Server) -> Iterator[float]:
    """Return when each phase ended."""
    events = list(server.events)
    yield _first(events, lambda event: event["event"] == "listening")
    yield _first(events, lambda event: event.get("state") == "INITIAL")
    yield _first(events, lambda event: event.get("phase") in ("LOADING", *_WEIGHTS_DONE))
    yield _first(events, lambda event: event.get("phase") in _WEIGHTS_DONE)
    yield _first(events, lambda event: event["event"] == "model_ready")


def _first(events: list[dict[str, Any]], wanted: Any) -> float:
    found = next(event for event in events if "timestamp" in event and wanted(event))
    return datetime.fromisoformat(found["timestamp"]).timestamp()


def _check_cached(folder: Path) -> None:
    if not list(folder.rglob("*.weights")):
        raise RuntimeError("the first start has kept no packed weights for the second")


def table(kinds: list[Starts]) -> str:
    """Return the section of the page."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [
        f"{date}. {cpu_name()}, {os.cpu_count()} cores. Seconds, medians of {len(kinds[0].phases)} starts.",
        "",
        f"| start | {' | '.join(PHASES)} | ready | cores that others used |",
        "|---" * (len(PHASES) + 3) + "|",
        *(kind.row() for kind in kinds),
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page's section."""
    parser = measurement(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    text = table(measured(arguments.rounds, Quietness(2.0)))
    print(text)
    if arguments.write:
        STARTUP.write(text)


if __name__ == "__main__":
    main()
