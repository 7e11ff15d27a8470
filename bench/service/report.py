"""The results of `python -m bench.service`: on the terminal, as JSON, and as a table of results/service.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.common.machine import Limits
from bench.common.page import RESULTS, SERVICE

_JSON = RESULTS / "service.json"

_PROCESSES = ("engine", "gateway", "client", "core")


@dataclass(frozen=True)
class Row:
    """One scenario.

    Attributes:
        sessions: number of sessions of all client processes together.
        processes: number of client processes.
        direct: without a gateway.
        http: over HTTP, with a connection for each request; latencies are not measured.
        steps_seen: share of the steps that readers read one by one; the others were read together with a later one.
            Over HTTP, events per token.
        cpu_us: CPU microseconds per token, by process.
        added_ms: added latencies.
        read_ms: the same until everything was read.
    """

    sessions: int
    processes: int
    direct: bool
    http: bool
    tokens_per_second: float
    steps_seen: float
    cpu_us: dict[str, float]
    added_ms: list[float]
    read_ms: list[float]

    def summary(self) -> dict[str, Any]:
        """Return the row as stored."""
        return {
            "sessions": self.sessions,
            "client_processes": self.processes,
            "gateway": not self.direct,
            "http": self.http,
            "tokens_per_second": round(self.tokens_per_second),
            "steps_seen": round(self.steps_seen, 4),
            "cpu_us_per_token": {name: round(self.cpu_us[name], 2) for name in _PROCESSES},
            "added_latency_ms": _percentiles(self.added_ms),
            "read_latency_ms": _percentiles(self.read_ms),
        }


@dataclass(frozen=True)
class Run:
    """Results of one run."""

    date: str
    limits: Limits
    rows: Sequence[Row]


def print_run(run: Run) -> None:
    """Print the machine and the table."""
    print(_text(run))


def write_run(run: Run) -> None:
    """Write the JSON, and replace the table in results/service.md.

    Raises:
        ValueError: the page has no section for it.
    """
    content = {"date": run.date, "machine": vars(run.limits), "scenarios": [row.summary() for row in run.rows]}
    _JSON.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    SERVICE.write(_text(run))


def _text(run: Run) -> str:
    limits = run.limits
    machine = (
        f"{run.date}. {limits.cpu}, {limits.cores} cores, load average {limits.load:.2f} at the start. "
        f"Limits in the same run: memory copy {limits.copy_gb_s:.1f} GB/s, a round of a Python loop "
        f"{limits.python_ns:.0f} ns, a unary gRPC round trip over loopback {limits.round_trip_us:.0f} µs (p50)."
    )
    head = [
        "| client sessions | tokens/s | engine | gateway | clients | core | added p50 / p99 ms | read p50 / p99 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([machine, "", *head, *map(_line, run.rows)])


def _line(row: Row) -> str:
    costs = [f"{row.cpu_us[name]:.1f}" for name in _PROCESSES]
    times = [f"{value['p50']:.2f} / {value['p99']:.2f}" for value in map(_percentiles, (row.added_ms, row.read_ms))]
    if row.direct:
        costs[1] = "–"
    if row.http:
        times = ["–", "–"]
    return f"| {' | '.join([_clients(row), f'{row.tokens_per_second:,.0f}', *costs, *times])} |"


def _clients(row: Row) -> str:
    if row.http:
        return f"HTTP in 1 process, {row.steps_seen:.2f} events a token"
    if row.direct:
        return f"{row.sessions} from the engine"
    return f"{row.sessions} in {row.processes} process{'es' if row.processes > 1 else ''}"


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {name: round(ordered[int(share * (len(ordered) - 1))], 3) for name, share in (("p50", 0.5), ("p99", 0.99))}
