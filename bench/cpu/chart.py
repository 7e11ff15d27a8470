"""The chart of the comparisons of `python -m bench.cpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.peers.workloads import LESS_IS_BETTER, UNITS

_OURS, _PEER, _FLOOR = "#1f5fa8", "#b8bec6", "#d0442e"
_TITLES = {
    ("W1", "decode"): "One request, decode",
    ("W1", "ttft"): "One request, first id",
    ("W2", "output"): "16 requests, output",
    ("W3-b1", "decode"): "0.5B, one request, decode",
    ("W3-b1", "prefill"): "0.5B, one prompt, prefill",
    ("W3-b16", "output"): "0.5B, 16 requests, output",
    ("W3-b16", "prefill"): "0.5B, 16 prompts, prefill",
}


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw bars of ours and each peer's best, and the floor as a line, for each comparison, if there are any."""
    rows = [row for row in content["comparisons"] if row["best"]]
    if not rows:
        return
    columns = 4
    figure, axes = plt.subplots(-(-len(rows) // columns), columns, figsize=(13, 6), squeeze=False)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    for axis, row in zip(axes.flat, rows, strict=False):
        _panel(axis, row, _peers(content["series"][row["workload"]], row["metric"]))
    machine = content["machine"]
    figure.suptitle(f"{machine['cpu']}, {machine['cores']} cores. Red: the floor that the machine sets", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _peers(series: list[dict[str, Any]], metric: str) -> dict[str, tuple[float, str]]:
    """Return the best figure of each peer, and its format."""
    found: dict[str, tuple[float, str]] = {}
    for one in series:
        value, known = one["medians"][metric], found.get(one["who"])
        if known is None or (value < known[0]) == (metric in LESS_IS_BETTER):
            found[one["who"]] = (value, one["form"])
    return {who: best for who, best in found.items() if who != "headrace"}


def _panel(axis: Axes, row: dict[str, Any], peers: dict[str, tuple[float, str]]) -> None:
    bars = {f"headrace\n{row['our_format']}": row["ours"]}
    bars |= {f"{who}\n{form}": value for who, (value, form) in peers.items()}
    names = [name.replace(", activations", ",\nactivations") for name in bars]
    drawn = axis.bar(names, list(bars.values()), color=[_OURS, *[_PEER] * len(peers)], width=0.6)
    axis.bar_label(drawn, fmt="{:,.0f}", fontsize=9)
    axis.axhline(row["floor"], color=_FLOOR, linewidth=1)
    unit, worse = UNITS[row["metric"]], row["metric"] in LESS_IS_BETTER
    title = _TITLES.get((row["workload"], row["metric"]), f"{row['workload']} {row['metric']}")
    ratio = f"\n{row['ratio']:.2f} × the best peer" if row["ratio"] else ""
    axis.set_title(f"{title}, {unit}{', less is better' if worse else ''}{ratio}", fontsize=9)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_ylim(0, 1.12 * max(*bars.values(), row["floor"]))
    axis.set_yticks([])
    axis.spines[["top", "right", "left"]].set_visible(False)
