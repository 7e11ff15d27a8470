"""Tables that `python -m bench.cpu` writes into results/cpu.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.peers.workloads import UNITS


def text(content: dict[str, Any]) -> str:
    """Return the text of all parts measured."""
    parts = [_machine(content), *_comparisons(content), *_everybody(content)]
    parts += [show(content[name]) for name, show in _TABLES.items() if name in content]
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _machine(content: dict[str, Any]) -> str:
    limits, machine = content["limits"], content["machine"]
    products = ", ".join(f"{name} {rate:,.0f}" for name, rate in limits["products"].items())
    missing = {run["missing"] for run in content["runs"].values() if run["missing"]}
    memory = f"{limits['usual_memory']:.1f} GB/s (median; {limits['memory']:.1f} at best)"
    return (
        f"{content['date']}. {machine['cpu']}, {machine['cores']} cores. Limits: memory read {memory}, shared cache "
        f"{limits['cache']:.1f} GB/s; products in 10⁹ operations a second: {products}."
        + "".join(f" Measured {words}." for words in sorted(missing))
    )


def _comparisons(content: dict[str, Any]) -> Iterator[str]:
    head = ["workload", "metric", "ours", "", "best peer", "", "ours is better", "floor", "of the floor"]
    if content["comparisons"]:
        yield "**Ours beside the best peer.** Bold: our best format with no fewer bits than the peer's."
        yield table(head, [_comparison(row) for row in content["comparisons"]])


def _comparison(row: dict[str, Any]) -> list[str]:
    unit = UNITS[row["metric"]]
    peer = ["–"] * 3
    if row["peer"]:
        peer = [f"{row['peer']} {row['peer_format']}", f"{row['peer_value']:,.0f}", f"{row['ratio']:.2f} ×"]
    cells = [
        row["workload"],
        f"{row['metric']}, {unit}",
        row["our_format"],
        f"{row['ours']:,.0f}",
        *peer,
        f"{row['floor']:,.0f}",
        f"{row['fraction']:.0%}",
    ]
    return [f"**{cell}**" for cell in cells] if row["best"] else cells


def _everybody(content: dict[str, Any]) -> Iterator[str]:
    """Return the medians of all contestants, including peers."""
    for workload, series in content.get("series", {}).items():
        run = content["runs"][workload]
        metrics = [row["metric"] for row in content["comparisons"] if row["workload"] == workload]
        names = list(dict.fromkeys(metrics))
        disturbed = sum(one["disturbed"] for one in series)
        yield (
            f"**{workload}**, everybody, {run['date']}: medians of {run['rounds']} rounds in turns; of the first round "
            f"alone where that left nothing to win. Memory read {run['limits']['usual_memory']:.1f} GB/s. Answers "
            f"disturbed by others: {disturbed}."
        )
        head = ["who", "format", "rounds", *(f"{name}, {UNITS[name]}" for name in names)]
        yield table(head, [_series(one, names) for one in series])


def _series(one: dict[str, Any], metrics: Sequence[str]) -> list[object]:
    return [one["who"], one["form"], one["rounds"], *(f"{one['medians'][name]:,.0f}" for name in metrics)]


def _contention(rows: list[dict[str, Any]]) -> str:
    head = ["who", "format", "decode alone, ids/s", "beside", "share", "share of the whole answer"]
    lines = [
        [r["who"], r["format"], r["quiet"], r["beside"], f"{r['share']:.0%}", f"{r['share_of_whole']:.0%}"]
        for r in rows
    ]
    return "**Beside a process that never rests** on the first core, 32 ids after 128:\n\n" + table(head, lines)


def _split(found: dict[str, Any]) -> str:
    head = ["threads", "way", "ms an id", "native call", "between calls", "over in process", "arrives after, ms"]
    lines = [
        [
            *(row["threads"], row["way"], f"{row['ms']:.2f}", f"{row['native']:.2f}", f"{row['between']:.3f}"),
            *(f"{row['over']:+.1%}", f"{row['late']:.2f}"),
            ", ".join(f"{name} {us:,}" for name, us in row["cpu_us"].items()),
            row["quiet"],
        ]
        for row in found["rows"]
    ]
    title = (
        f"**Where the time of one request goes**, W1 in {found['format']}; `bench/cpu/split.py` says what the ways are:"
    )
    return f"{title}\n\n" + table([*head, "CPU of an id, µs", "quiet rounds"], lines)


def _threads(rows: list[dict[str, Any]]) -> str:
    lines = [[row["threads"], row["decode"], row["ttft"]] for row in rows]
    return "**With a core left free**, W1:\n\n" + table(["threads", "decode, ids/s", "ttft, ms"], lines)


def _start(found: dict[str, dict[str, float]]) -> str:
    lines = [[name, f"{one['model']:.1f}", f"{one['process']:.1f}"] for name, one in found.items()]
    head = ["packed weights", "from StartModel, s", "from the start of the engine's process, s"]
    return "**Until SmolLM2 is ready:**\n\n" + table(head, lines)


def _steps(rows: list[dict[str, Any]]) -> str:
    head = ["model", "format", "step", "ms", "at best", "floor, ms", "of the floor"]
    lines = [
        [r["model"], r["format"], r["step"], r["ms"], r["best_ms"], r["floor_ms"], f"{r['fraction']:.0%}"] for r in rows
    ]
    return "**Whole steps**, one native call each:\n\n" + table(head, lines)


def _kernels(rows: list[dict[str, Any]]) -> str:
    head = ["kernel", "shape", "format", "rows", "µs at best", "median", "rate", "limit", "of the limit"]
    lines = [
        [
            *(r["op"], r["shape"], r["format"], r["rows"], f"{r['best_us']:,.1f}", f"{r['median_us']:,.1f}"),
            *(f"{r['rate']:,.0f}", f"{r['limit']:,.0f} {r['unit']}", f"{r['fraction']:.0%}"),
        ]
        for r in rows
    ]
    return f"<details><summary>Every kernel</summary>\n\n{table(head, lines)}\n\n</details>"


_TABLES: dict[str, Callable[[Any], str]] = {
    "contention": _contention,
    "split": _split,
    "threads": _threads,
    "start": _start,
    "steps": _steps,
    "kernels": _kernels,
}
