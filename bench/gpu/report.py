"""Tables of measurements on a card, or of expectations; and their storage in the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace_engine.models.spec import DecoderSpec

from bench.common.page import RESULTS
from bench.gpu.costs import Cost
from bench.gpu.decode import Load, Measured, step_cost

RUNS = RESULTS / "gpu.jsonl"


def op_table(costs: Mapping[str, Cost], limits: tuple[float, float], measured: Mapping[str, float] | None) -> str:
    """Return a table of each op with the floor of its bytes and operations, or "not here" if the card cannot run it.

    Without measurements, only the floors.
    """
    heads = ["op", "MB", "GFLOP", "floor µs", *(["measured µs", "percent"] if measured else [])]
    rows = []
    for name, cost in costs.items():
        floor = cost.floor(*limits)
        row = [name, f"{cost.moved / 1e6:,.2f}", f"{cost.computed / 1e9:,.2f}", f"{floor * 1e6:,.1f}"]
        if measured:
            taken = measured.get(name)
            row += [f"{taken * 1e6:,.1f}", f"{100 * floor / taken:.0f}"] if taken else ["not here", ""]
        rows.append(row)
    return table(heads, rows)


def decode_table(
    spec: DecoderSpec, load: Load, limits: tuple[float, float], measured: Sequence[Measured] | None
) -> str:
    """Return a table of steps of one token per sequence with their floor, halfway through the answers."""
    heads = ["batch", "floor ms", *(["step ms", "percent", "prompts ms", "tokens/s"] if measured else [])]
    rows = []
    for number, batch in enumerate(load.batches):
        floor = Cost(*step_cost(spec, batch, load.prompt + load.new // 2)).floor(*limits)
        row = [str(batch), f"{floor * 1e3:,.3f}"]
        if measured:
            found = measured[number]
            percent = f"{100 * floor / found.step_s:.0f}"
            row += [f"{found.step_s * 1e3:,.3f}", percent, f"{found.prompt_s * 1e3:,.1f}", f"{found.tokens_s:,.0f}"]
        rows.append(row)
    return table(heads, rows)


def limits_line(limits: tuple[float, float]) -> str:
    """Return a line with the limits that floors are derived from."""
    return (
        f"a copy reads and writes {limits[0] / 1e12:.3f} TB/s, a bfloat16 product does {limits[1] / 1e12:.1f} TFLOP/s"
    )


def keep(
    path: Path,
    card: str,
    date: str,
    limits: tuple[float, float],
    ops: Mapping[str, float],
    decode: Mapping[str, Sequence[Measured]],
) -> None:
    """Append a run to a file of one JSON object per line."""
    run: dict[str, Any] = {
        "card": card,
        "date": date,
        "copy_bytes_s": limits[0],
        "product_ops_s": limits[1],
        "op_seconds": dict(ops),
        "decode": {name: [asdict(each) for each in found] for name, found in decode.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table in which only the first column is text."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
