"""Rounds of a workload: all contestants answer once per round, in turns, so that all see the same machine state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.common.quietness import LOUD, Quietness
from bench.peers.contestant import Contestant
from bench.peers.workloads import LESS_IS_BETTER, Workload, better, random_ids, read_off

OURS = "headrace"
_WARM = 200
_MOST_BITS = 8
_NEAR, _IN_REACH = 0.92, 0.6
"""Minimum shares of the first round's best figure: of the peer's own best, and of the best of all peers."""


@dataclass
class Series:
    """Results of one contestant in all rounds of a workload.

    Attributes:
        values: values of each metric, by round.
        others: CPU cores that other processes used, by round.
        weight_bytes: bytes of our weights; None for a peer.
    """

    who: str
    form: str
    bits: int
    codes: bool
    weight_bytes: int | None
    values: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def middle(self, metric: str) -> float:
        """Return the median of the quiet rounds; of all rounds if none was quiet."""
        values = self.values[metric]
        quiet = [value for value, others in zip(values, self.others, strict=True) if others < LOUD]
        return median(quiet or values)

    def add(self, values: Mapping[str, float], others: float) -> None:
        """Add a round."""
        for metric, value in values.items():
            self.values.setdefault(metric, []).append(value)
        self.others.append(others)

    @property
    def disturbed(self) -> int:
        """Number of rounds in which others used the machine."""
        return sum(others >= LOUD for others in self.others)


def series_of(contestant: Contestant) -> Series:
    """Return an empty series."""
    form, weight_bytes = contestant.form, getattr(contestant, "weight_bytes", None)
    return Series(contestant.who, form.name, form.bits, form.codes, weight_bytes)


def rounds(
    workload: Workload, contestants: Sequence[Contestant], count: int, quietness: Quietness, first: int = 0
) -> list[Series]:
    """Run rounds of all contestants in turns.

    Args:
        first: number of the first round; prompts are by number.
    """
    for contestant in contestants:
        contestant.answer([random_ids(_WARM, number) for number in range(2)], 4)
    series = [series_of(contestant) for contestant in contestants]
    _go_on(workload, contestants, series, range(first, first + count), quietness)
    return series


def tournament(workload: Workload, contestants: Sequence[Contestant], count: int, quietness: Quietness) -> list[Series]:
    """Run one round of all contestants, then the other rounds of those that may be best; see `qualified`."""
    series = rounds(workload, contestants, 1, quietness)
    chosen = qualified(workload, series)
    best = [contestant for contestant, go_on in zip(contestants, chosen, strict=True) if go_on]
    _go_on(
        workload, best, [one for one, go_on in zip(series, chosen, strict=True) if go_on], range(1, count), quietness
    )
    return series


def _go_on(
    workload: Workload,
    contestants: Sequence[Contestant],
    series: Sequence[Series],
    numbers: range,
    quietness: Quietness,
) -> None:
    for number in numbers:
        for contestant, found in zip(contestants, series, strict=True):
            found.add(*measured(workload, contestant, number, quietness))


def qualified(workload: Workload, heats: Sequence[Series]) -> list[bool]:
    """Select for each metric our best format of 4 bits and of 8, and peers' formats near their own best.

    Peers that are not near the best of all peers in any metric drop out.
    """

    def near(one: Series, others: Sequence[Series], share: float) -> bool:
        return any(
            better(metric, one.middle(metric), other.middle(metric)) >= share
            for metric in workload.metrics
            for other in [_best(others, metric)]
        )

    found = []
    for heat in heats:
        own = [other for other in heats if other.who == heat.who]
        if heat.who == OURS:
            found.append(heat.bits <= _MOST_BITS and near(heat, [one for one in own if one.bits == heat.bits], 1.0))
        else:
            peers = [other for other in heats if other.who != OURS]
            found.append(near(heat, own, _NEAR) and near(heat, peers, _IN_REACH))
    return found


def _best(series: Sequence[Series], metric: str) -> Series:
    choose = min if metric in LESS_IS_BETTER else max
    return choose(series, key=lambda one: one.middle(metric))


def measured(
    workload: Workload, contestant: Contestant, number: int, quietness: Quietness
) -> tuple[Mapping[str, float], float]:
    """Return the metrics of one round of one contestant, and the CPU cores that others used."""
    prompts = workload.prompts(number)
    quietness.wait()
    answer, others = quietness.watched(lambda: contestant.answer(prompts, workload.new))
    return read_off(workload, prompts, answer), others
