"""Ours compared with the best peer, with the floor: a row per workload, metric and format of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.cpu.floors import Floor, fraction
from bench.cpu.rounds import OURS, Series
from bench.kernels.limits import Limits
from bench.peers.workloads import LESS_IS_BETTER, Workload, better


def rows_of(workload: Workload, series: Sequence[Series], limits: Limits) -> list[dict[str, Any]]:
    """Return all rows of one workload. Without peers, the peer's fields are None."""
    ours = [one for one in series if one.who == OURS]
    theirs = [one for one in series if one.who != OURS]
    found = []
    for metric in workload.metrics:
        peer = _best(theirs, metric)
        honest = [one for one in ours if peer is None or one.bits >= peer.bits] or ours
        best = _best(honest, metric)
        found += [_row(workload, metric, one, peer, one is best, limits) for one in ours]
    return found


def _best(series: Sequence[Series], metric: str) -> Series | None:
    if not series:
        return None
    choose = min if metric in LESS_IS_BETTER else max
    return choose(series, key=lambda one: one.middle(metric))


def _row(
    workload: Workload, metric: str, ours: Series, peer: Series | None, best: bool, limits: Limits
) -> dict[str, Any]:
    assert ours.weight_bytes is not None
    value, floor = ours.middle(metric), Floor(limits, ours.weight_bytes, ours.bits, ours.codes).of(workload, metric)
    theirs = None if peer is None else peer.middle(metric)
    return {
        "workload": workload.name,
        "metric": metric,
        "our_format": ours.form,
        "ours": round(value, 1),
        "peer": None if peer is None else peer.who,
        "peer_format": None if peer is None else peer.form,
        "peer_value": None if theirs is None else round(theirs, 1),
        "ratio": None if theirs is None else round(better(metric, value, theirs), 3),
        "floor": round(floor, 1),
        "fraction": round(fraction(metric, value, floor), 3),
        "best": best,
    }
