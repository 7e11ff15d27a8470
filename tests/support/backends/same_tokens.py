"""Comparison of two runs of a model: the one definition of "the same tokens" for all tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

Top = Sequence[tuple[int, float]]

ROUNDING = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}
"""By number format: two scores closer than this may swap ranks. For tiny models."""


@dataclass(frozen=True)
class Distance:
    """Limits on how far the distance of the two best scores may differ between two ways to compute: median and maximum.

    Two ways sample different ids only where the distance is smaller than that difference, so ids need not be compared.
    """

    median: float
    most: float


TINY_MODEL = Distance(median=0.06, most=0.6)
"""For tiny models, between two backends that both compute in bfloat16, each in its own way.

Against float32, after each of 1,600 ids of the model of `native/sim_runs.py`:

    computed                                        median    99 of 100    most
    cpu, weights as numbers; avx2 and avx512 alike   0.016         0.08    0.18
    the same with keys and values in INT8            0.024         0.14    0.23
    cpu, avx512_bf16 and amx                         0.019         0.10    0.21
    the same with INT8                               0.026         0.13    0.24
    cuda                                             0.027         0.13    0.19
    the same with INT8                               0.034         0.17    0.27

Instruction sets without products of bfloat16 multiply activations in float32, and so are nearer to float32 and no
nearer to those that round them: between cuda and each of the others the distance is off by 0.037 in the median at most,
by 0.18 in 99 of 100, and by 0.29 at most. The limits leave half as much again, and twice.
"""

REAL_MODEL = 0.25
"""The same for SmolLM2 as the cpu backend stores it by default; the standard deviation of its logits is 3.5.

Against float32 on the same weights, after each of 768 ids of a text, the distance of the two best scores is off by

    computed                                            median    99 of 100    most
    up to 16 rows a step; INT8 weights always            0.007        0.048    0.12
    more rows of Q4_1                                    0.016        0.093    0.13
    more rows of INT4 in groups of 64                    0.019        0.104    0.17

The first line is the cost of keys and values in bfloat16; products of few rows add nothing to it, and do not depend on
the number of rows. With more rows, 4-bit weights and activations are rounded to bfloat16. Two ways to compute may be
off in opposite directions.
"""

ALLOWED_SHARE = 0.05
"""Maximum share of runs that may diverge where rounding decides."""


@dataclass
class Comparison:
    """Result of a comparison.

    Attributes:
        runs: runs compared.
        split: of these, runs that diverge where rounding decides.
        smallest_gap: smallest distance of the two best scores at any compared token; inf without scores.
    """

    runs: int = 0
    split: list[int] = field(default_factory=list)
    smallest_gap: float = float("inf")

    @property
    def share(self) -> float:
        """Share of runs that diverge."""
        return len(self.split) / self.runs if self.runs else 0.0


def same_tokens(
    reference_ids: Sequence[Sequence[int]],
    ids: Sequence[Sequence[int]],
    reference_scores: Sequence[ArrayLike] | None = None,
    *,
    rounding: float = 0.0,
) -> Comparison:
    """Assert that runs have the same tokens as the reference; print the share that diverges and the smallest gap.

    A run is the same if it is identical, or identical up to a first difference at which the reference's two best
    scores are closer than `rounding`. At most ALLOWED_SHARE of the runs may diverge; rounding 0 allows none.

    Args:
        reference_ids, ids: tokens of each run.
        reference_scores: of each run, the scores [tokens, vocab] that its ids maximize; required with a rounding.
    """
    assert len(reference_ids) == len(ids), f"{len(ids)} runs against {len(reference_ids)} of the reference"
    assert rounding == 0 or reference_scores is not None, "a rounding can only be judged by the reference's scores"
    found = Comparison(runs=len(ids))
    for run, (expected, got) in enumerate(zip(reference_ids, ids, strict=True)):
        first = _first_difference(expected, got)
        gaps = _gaps(reference_scores[run], len(expected) if first is None else first + 1) if reference_scores else []
        found.smallest_gap = min([found.smallest_gap, *gaps])
        if first is None:
            continue
        gap = gaps[first] if first < len(gaps) else float("inf")
        assert gap < rounding, _difference(run, first, expected, got, gap, rounding)
        found.split.append(run)
    print(f"same_tokens: {found.runs} runs, {found.share:.1%} part, smallest gap {found.smallest_gap:.3g}")
    assert found.share <= ALLOWED_SHARE, f"{found.share:.1%} of {found.runs} runs part by rounding: {found.split}"
    return found


def scores_agree(reference: Sequence[Top], tops: Sequence[Top], limit: Distance) -> None:
    """Assert that the distances of the reference's two best scores differ by no more than a limit.

    Args:
        reference, tops: of each token, the best ids and their scores, best first; the other way to compute lists the
            reference's two best, or has others before them that are better by far.
        limit: maximum differences.
    """
    assert len(reference) == len(tops), f"{len(tops)} tokens against {len(reference)} of the reference"
    off = np.array([_off(*pair) for pair in zip(reference, tops, strict=True)])
    median, place = float(np.median(off)), int(off.argmax())
    print(f"scores_agree: {len(off)} tokens, off by {median:.3g} in the median, {off[place]:.3g} at most")
    assert off[place] <= limit.most, f"token {place}: {reference[place]} of the reference, {tops[place]} here"
    assert median <= limit.median, f"distances are off by {median:.3g} in the median, more than {limit.median:g}"


def _off(reference: Top, top: Top) -> float:
    """Return how far the distance of the reference's two best differs; an id that is not listed ranks below all."""
    scores = dict(top)
    (first, high), (second, low) = reference[:2]
    least = top[-1][1]
    return abs((high - low) - (scores.get(first, least) - scores.get(second, least)))


def _first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Return the position of the first difference; a run that ends early differs where it ends."""
    for place, pair in enumerate(zip(expected, got, strict=False)):
        if pair[0] != pair[1]:
            return place
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _gaps(scores: ArrayLike, tokens: int) -> list[float]:
    """Return the distance of the two best scores at each of the first tokens, ignoring scores of -inf."""
    best = np.sort(np.asarray(scores, dtype=np.float64), axis=1)[:tokens, -2:]
    return [float(high - low) for low, high in best]


def _difference(run: int, place: int, expected: Sequence[int], got: Sequence[int], gap: float, rounding: float) -> str:
    near = slice(max(0, place - 3), place + 3)
    return (
        f"run {run} parts at token {place}: expected {list(expected[near])}, got {list(got[near])}; "
        f"the reference's two best scores are {gap:.3g} apart, rounding is {rounding:.3g}"
    )
