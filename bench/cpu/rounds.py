"""Rounds of a workload: everybody answers once a round, one after the other, so that all meet the same machine."""

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
"""Shares of the best figure of the first round: a peer's format of its own best, and of the best of all peers."""


@dataclass
class Series:
    """What one contestant did in all rounds of a workload.

    Attributes:
        values: of each metric, one a round.
        others: cores that other processes used meanwhile, one a round.
        weight_bytes: of ours; None: of a peer.
    """

    who: str
    form: str
    bits: int
    codes: bool
    weight_bytes: int | None
    values: dict[str, list[float]] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    def middle(self, metric: str) -> float:
        """The median of the quiet rounds; of all where none was quiet."""
        values = self.values[metric]
        quiet = [value for value, others in zip(values, self.others, strict=True) if others < LOUD]
        return median(quiet or values)

    def add(self, values: Mapping[str, float], others: float) -> None:
        """One more round."""
        for metric, value in values.items():
            self.values.setdefault(metric, []).append(value)
        self.others.append(others)

    @property
    def disturbed(self) -> int:
        """Rounds in which others used the machine."""
        return sum(others >= LOUD for others in self.others)


def series_of(contestant: Contestant) -> Series:
    """An empty one."""
    form, weight_bytes = contestant.form, getattr(contestant, "weight_bytes", None)
    return Series(contestant.who, form.name, form.bits, form.codes, weight_bytes)


def rounds(
    workload: Workload, contestants: Sequence[Contestant], count: int, quietness: Quietness, first: int = 0
) -> list[Series]:
    """Ask everybody in turns.

    Args:
        first: number of the first round; prompts are by number.
    """
    for contestant in contestants:
        contestant.answer([random_ids(_WARM, number) for number in range(2)], 4)
    series = [series_of(contestant) for contestant in contestants]
    _go_on(workload, contestants, series, range(first, first + count), quietness)
    return series


def tournament(workload: Workload, contestants: Sequence[Contestant], count: int, quietness: Quietness) -> list[Series]:
    """One round of everybody, then the others of those who may be the best; see `qualified`."""
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
    """Who goes on: in one of the metrics, our best format of 4 bits and of 8; peers' formats near their own best.

    Peers that no metric has near the best of all peers are out.
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
    """The metrics of one round of one contestant, and the cores that others used meanwhile."""
    prompts = workload.prompts(number)
    quietness.wait()
    answer, others = quietness.watched(lambda: contestant.answer(prompts, workload.new))
    return read_off(workload, prompts, answer), others
