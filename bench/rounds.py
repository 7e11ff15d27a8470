"""Rounds of a workload: everybody answers once a round, one after the other, so that all meet the same machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from contestants import Contestant
from quietness import LOUD, Quietness
from workloads import Workload, random_ids, read_off

_WARM = 200


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
    series = [series_of(contestant) for contestant in contestants]
    for contestant in contestants:
        contestant.answer([random_ids(_WARM, number) for number in range(2)], 4)
    for number in range(first, first + count):
        for contestant, found in zip(contestants, series, strict=True):
            _add(found, measured(workload, contestant, number, quietness))
    return series


def measured(
    workload: Workload, contestant: Contestant, number: int, quietness: Quietness
) -> tuple[Mapping[str, float], float]:
    """The metrics of one round of one contestant, and the cores that others used meanwhile."""
    prompts = workload.prompts(number)
    quietness.wait()
    answer, others = quietness.watched(lambda: contestant.answer(prompts, workload.new))
    return read_off(workload, prompts, answer), others


def _add(series: Series, found: tuple[Mapping[str, float], float]) -> None:
    for metric, value in found[0].items():
        series.values.setdefault(metric, []).append(value)
    series.others.append(found[1])
