"""Chooses how many guessed ids a step computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headrace_engine.core.speculation.row_costs import RowCosts

_LEAST_GAIN = 1.1
"""Gain in ids per second, by the estimates, below which nothing is drafted."""


def best_counts(likelihoods: Sequence[Sequence[float]], most: int, costs: RowCosts) -> list[int]:
    """Return how many of the guessed ids of each sequence give a step the most ids per second.

    Args:
        likelihoods: of each sequence, how likely each of its guessed ids is to hold, in falling order.
        most: maximum number of guessed ids in all.
        costs: the time of steps. Where nothing was measured, all are chosen that may be.
    """
    return _best(likelihoods, most, costs)[1]


def best_depth(
    free: Sequence[Sequence[float]],
    drafted: Mapping[int, Sequence[float]],
    most: int,
    costs: RowCosts,
    seconds: float,
) -> int:
    """Return how many ids a draft model should generate for each of some sequences; 0: none would gain.

    Args:
        free: of each sequence, the likelihoods of what is guessed without the draft model, as in `best_counts`.
        drafted: those of the ids that the draft model would generate instead, of the sequences by number.
        most, costs: as in `best_counts`.
        seconds: what it takes the draft model to generate an id of every such sequence.
    """
    best, chosen = max(_LEAST_GAIN, _best(free, most, costs)[0]), 0
    deepest = min(max(map(len, drafted.values()), default=0), most // max(1, len(drafted)))
    for depth in range(1, deepest + 1):
        mixed = [drafted[number][:depth] if number in drafted else row for number, row in enumerate(free)]
        gain, _ = _best(mixed, most, costs, depth * seconds)
        if gain > best:
            best, chosen = gain, depth
    return chosen


def _best(
    likelihoods: Sequence[Sequence[float]], most: int, costs: RowCosts, before: float = 0.0
) -> tuple[float, list[int]]:
    """Return the most ids per second, as a multiple of those of a step without guesses, and the counts that give it.

    Args:
        before: seconds that the guesses took.
    """
    sequences = len(likelihoods)
    ordered = sorted(((chance, -i) for i, row in enumerate(likelihoods) for chance in row), reverse=True)[:most]
    alone = costs.of(sequences)
    best, chosen, ids = _LEAST_GAIN, 0, float(sequences)
    for count, (chance, _) in enumerate(ordered, 1):
        ids += chance
        gain = ids / sequences * alone / (costs.of(sequences + count) + before) if alone else ids
        if gain > best:
            best, chosen = gain, count
    counts = Counter(-i for _, i in ordered[:chosen])
    return best if chosen else 1.0, [counts[i] for i in range(sequences)]
