"""A chart of a load: how long users waited, and what the service did over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.cli.bench.load import Felt

NEEDS_MATPLOTLIB = "--chart needs the package matplotlib, which is not installed: pip install 'headrace[chart]'"

_INTERVALS = 60


def write_chart(path: str, title: str, felt: Sequence[Felt], seconds: float) -> None:
    """Write a chart; the ending of its name says in which format.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: there is no such format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(NEEDS_MATPLOTLIB) from None
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(title)
    _shares(axes[0][0], "first token", [one.first_token for one in felt if one.first_token is not None])
    _shares(axes[0][1], "between two arrivals of tokens", [gap for one in felt for gap in one.gaps])
    width = max(seconds / _INTERVALS, 1e-3)
    arrivals = [each for one in felt for each in one.arrivals]
    times, counts = [time for time, _ in arrivals], [count / width for _, count in arrivals]
    bins = [index * width for index in range(_INTERVALS + 1)]
    axes[1][0].hist(times, bins=bins, weights=counts, histtype="stepfilled")
    axes[1][0].set(title="tokens per second", xlabel="seconds", ylim=(0, None))
    middles = [time + width / 2 for time in bins[:-1]]
    running = [sum(one.begun <= time < _end(one, seconds) for one in felt) for time in middles]
    axes[1][1].step(middles, running, where="mid")
    axes[1][1].set(title="requests in progress", xlabel="seconds", ylim=(0, None))
    figure.savefig(path)


def _shares(axis: Any, title: str, values: Sequence[float]) -> None:
    """Draw for every time which share of the values is not longer."""
    ordered = sorted(1000 * value for value in values)
    shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
    axis.step(ordered, shares, where="post")
    axis.set(title=title, xlabel="milliseconds", ylabel="share", ylim=(0, 1))
    axis.grid(alpha=0.3)


def _end(one: Felt, seconds: float) -> float:
    return one.ended if one.ended is not None else one.arrivals[-1][0] if one.arrivals else min(one.begun, seconds)
