"""What "the same tokens" means when two runs of a model are compared, in one place for all tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

ROUNDING = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 4e-3}
"""By number format: two scores that are closer than this may change places. Of tiny models."""

REAL_MODEL = 0.25
"""The same of SmolLM2 as the cpu backend stores it unless told otherwise, whose logits after an id spread by 3.5.

Against float32 on the same weights, after each of 768 ids of a text, the distance of the two best scores is off by

    computed                                            median    99 of 100    most
    up to 16 rows a step; INT8 weights always            0.007        0.048    0.12
    more rows of Q4_1                                    0.016        0.093    0.13
    more rows of INT4 in groups of 64                    0.019        0.104    0.17

The first line is what keys and values in bfloat16 cost; products of few rows add nothing to it, and give the same
whatever the number of rows. Where there are more, 4-bit weights and activations are rounded to bfloat16. Two ways to
compute may be off to different sides.
"""

ALLOWED_SHARE = 0.05
"""Share of runs that may end at such a place."""


@dataclass
class Comparison:
    """What a comparison met.

    Attributes:
        runs: runs compared.
        split: of these, runs that part at a place where rounding decides.
        smallest_gap: smallest distance of the two best scores at any compared token; inf where no scores were given.
    """

    runs: int = 0
    split: list[int] = field(default_factory=list)
    smallest_gap: float = float("inf")

    @property
    def share(self) -> float:
        """Share of runs that part."""
        return len(self.split) / self.runs if self.runs else 0.0


def same_tokens(
    reference_ids: Sequence[Sequence[int]],
    ids: Sequence[Sequence[int]],
    reference_scores: Sequence[ArrayLike] | None = None,
    *,
    rounding: float = 0.0,
) -> Comparison:
    """Assert that runs bring the same tokens as the reference; prints the share that parts and the smallest gap.

    A run is the same if it is identical, or identical up to a first difference at which the reference's two best
    scores are closer than `rounding`. At most ALLOWED_SHARE of the runs may end so; rounding 0 allows none.

    Args:
        reference_ids, ids: tokens of each run.
        reference_scores: of each run, the scores [tokens, vocab] whose largest was chosen; needed with a rounding.
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


def _first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Place of the first difference; a run that ends early differs where it ends."""
    for place, pair in enumerate(zip(expected, got, strict=False)):
        if pair[0] != pair[1]:
            return place
    return None if len(expected) == len(got) else min(len(expected), len(got))


def _gaps(scores: ArrayLike, tokens: int) -> list[float]:
    """Distance of the two best scores at each of the first tokens; a score of -inf is no candidate."""
    best = np.sort(np.asarray(scores, dtype=np.float64), axis=1)[:tokens, -2:]
    return [float(high - low) for low, high in best]


def _difference(run: int, place: int, expected: Sequence[int], got: Sequence[int], gap: float, rounding: float) -> str:
    near = slice(max(0, place - 3), place + 3)
    return (
        f"run {run} parts at token {place}: expected {list(expected[near])}, got {list(got[near])}; "
        f"the reference's two best scores are {gap:.3g} apart, rounding is {rounding:.3g}"
    )
