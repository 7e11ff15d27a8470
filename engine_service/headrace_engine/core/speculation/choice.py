"""Chooses how many guessed ids a step computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    sequences = len(likelihoods)
    ordered = sorted(((chance, -i) for i, row in enumerate(likelihoods) for chance in row), reverse=True)[:most]
    alone = costs.of(sequences)
    best, chosen, ids = _LEAST_GAIN, 0, float(sequences)
    for count, (chance, _) in enumerate(ordered, 1):
        ids += chance
        gain = ids / sequences * alone / costs.of(sequences + count) if alone else ids
        if gain > best:
            best, chosen = gain, count
    counts = Counter(-i for _, i in ordered[:chosen])
    return [counts[i] for i in range(sequences)]
