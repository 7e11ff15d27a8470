"""The cpu backend on this machine: its limits, kernels and whole steps, and the service beside its peers.

    make bench-cpu [ONLY="W1 W2"]       or       python -m bench.cpu [PART ...]

Parts, in this order; without any, all of them:

- kernels: every kernel, in percent of the machine's limits (`bench.kernels`).
- steps: whole steps of SmolLM2 and of the shape of Qwen2.5-0.5B, one native call each (`whole_steps.py`).
- W1, W2, W3-b1, W3-b16: client, gateway and engine as real processes, beside llama.cpp's server and OpenVINO GenAI
  where they are installed (`bench/peers/README.md`), in turns (`rounds.py`); `bench/peers/workloads.py` says what is
  asked.
- contention: with another process that never rests on one core.
- split: where the time of one request goes. threads: with a core left free. start: how long a start takes.

The machine's limits are measured before each part, and each part is compared with those. Results go to
`bench/results/cpu.json`, which keeps what other runs of this machine wrote of other parts, and from there into
`bench/results/cpu.md` and its chart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from bench.common.models import MODELS, BenchModels
from bench.common.page import measurement
from bench.common.quietness import Quietness
from bench.cpu import service_cost
from bench.cpu.comparisons import rows_of
from bench.cpu.results import Results
from bench.cpu.rounds import tournament
from bench.cpu.split import split
from bench.cpu.whole_steps import timed_steps
from bench.kernels.limits import Limits, measure
from bench.peers.contestant import Contestant
from bench.peers.ours import FORMS, service
from bench.peers.peers import Peers
from bench.peers.workloads import WORKLOADS, Workload

_KERNEL_SECONDS = "0.03"


class Parts:
    """Measures parts.

    Args:
        count: rounds of each workload.
    """

    def __init__(self, models: BenchModels, peers: Peers, count: int, quietness: Quietness) -> None:
        self._models, self._peers, self._count, self._quietness = models, peers, count, quietness
        self._stack = ExitStack()
        self._up: tuple[str, list[Contestant]] | None = None
        cost = service_cost
        self.parts: Mapping[str, Callable[[Results], None]] = {
            "kernels": self._kernels,
            "steps": self._steps,
            **{workload.name: partial(self._compare, workload) for workload in WORKLOADS.values()},
            "contention": lambda results: results.put(
                "contention", cost.contention(models, peers, min(3, count), quietness)
            ),
            "split": lambda results: results.put("split", split(models, 2 * count, quietness)),
            "threads": lambda results: results.put("threads", cost.fewer_threads(models, count, quietness)),
            "start": lambda results: results.put("start", cost.start_up(models, quietness)),
        }

    def limits(self) -> Limits:
        """Measure the machine's limits now."""
        self._quietness.wait()
        return measure(self._peers.threads)

    def measure(self, part: str, results: Results) -> None:
        """Measure a part, and add it to the results."""
        if part not in WORKLOADS:
            self.close()
        results.begin(part, self.limits(), self._count)
        self.parts[part](results)

    def _kernels(self, results: Results) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "kernels.json"
            options = [
                "--seconds",
                _KERNEL_SECONDS,
                "--threads",
                str(self._peers.threads),
                "--no-steps",
                "--json",
                str(file),
            ]
            subprocess.run([sys.executable, "-m", "bench.kernels", *options], check=True)
            results.put("kernels", json.loads(file.read_text(encoding="utf-8")))

    def _steps(self, results: Results) -> None:
        found = []
        for model in MODELS:
            for form in FORMS[model]:
                limits = self.limits()
                for step in timed_steps(self._models, model, form, limits):
                    print(step, flush=True)
                    found.append(step)
        results.put("steps", found)

    def _compare(self, workload: Workload, results: Results) -> None:
        contestants = [one for one in self._contestants(workload.model) if one.suits(workload)]
        before = self.limits()
        series = tournament(workload, contestants, self._count, self._quietness)
        limits = before.with_later(self.limits())
        results.put_comparison(workload.name, rows_of(workload, series, limits), series, limits)

    def _contestants(self, model: str) -> list[Contestant]:
        """Return all contestants for a model. They stay up, idle, for later workloads with the same model."""
        if self._up is None or self._up[0] != model:
            self.close()
            servers = self._stack.enter_context(service())
            ours = [servers.install(self._models, model, form) for form in FORMS[model]]
            peers = [self._stack.enter_context(peer) for _, peer in self._peers.of(model)]
            self._up = model, [*ours, *peers]
        return self._up[1]

    def close(self) -> None:
        """End all servers."""
        self._stack.close()
        self._up = None


def main() -> None:
    """Measure, print and write the results."""
    arguments = _arguments()
    models = BenchModels.chosen()
    models.make()
    peers = Peers.chosen(models, one_thread_a_core())
    every = Parts(models, peers, arguments.rounds, Quietness())
    parts = arguments.parts or list(every.parts)
    unknown = set(parts) - set(every.parts)
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(every.parts)}")
    results = Results.of_this_machine(whole=not arguments.parts or not arguments.write)
    results.peers = peers.missing
    for part in parts:
        began = time.monotonic()
        every.measure(part, results)
        print(f"== {part}: {time.monotonic() - began:.0f} s", flush=True)
        if arguments.write:
            results.write()
    every.close()
    print(results.text())


def one_thread_a_core() -> int:
    """Return the number of threads of every contestant: the CPU cores that this process may use."""
    return min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))


def _arguments() -> argparse.Namespace:
    parser = measurement(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload; default %(default)d")
    return parser.parse_args()


if __name__ == "__main__":
    main()
