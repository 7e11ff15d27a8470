"""Figures of a load: rates and percentiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.cli.bench.load import Felt


@dataclass(frozen=True)
class Spread:
    """How values are distributed, in seconds; None: there are none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    largest: float | None


@dataclass(frozen=True)
class Figures:
    """Results of a load, as the users of a service felt it.

    Attributes:
        seconds: from the first start to the last end.
        completed: requests that ended.
        failed: requests that failed, by reason.
        prompt_tokens: tokens of the prompts of completed requests.
        tokens: tokens that came, also of requests that failed later.
        first_token: time from a request's start to its first token.
        gap: time between two arrivals of tokens of a request.
        per_token: time after the first token, by token after it.
        whole: time from a request's start to its end.
    """

    seconds: float
    completed: int
    failed: dict[str, int]
    prompt_tokens: int
    tokens: int
    first_token: Spread
    gap: Spread
    per_token: Spread
    whole: Spread

    def as_json(self) -> dict[str, Any]:
        """Return them as JSON's values."""
        return asdict(self)


def figures_of(felt: Sequence[Felt], seconds: float) -> Figures:
    """Return the figures of a load.

    Args:
        felt: what each request felt.
        seconds: time that all took together.
    """
    done = [one for one in felt if one.ended is not None]
    return Figures(
        seconds=seconds,
        completed=len(done),
        failed=dict(Counter(one.failure for one in felt if one.failure)),
        prompt_tokens=sum(one.prompt_tokens for one in done),
        tokens=sum(one.tokens for one in felt),
        first_token=spread([one.first_token for one in felt if one.first_token is not None]),
        gap=spread([gap for one in felt for gap in one.gaps]),
        per_token=spread([each for one in done if (each := _per_token(one)) is not None]),
        whole=spread([one.ended - one.begun for one in done if one.ended is not None]),
    )


def spread(values: Sequence[float]) -> Spread:
    """Return how values are distributed."""
    if not values:
        return Spread(None, None, None, None, None)
    ordered = sorted(values)
    p50, p90, p99 = (percentile(ordered, one) for one in (50, 90, 99))
    return Spread(sum(values) / len(values), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in ascending order, interpolated between the two next to it."""
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _per_token(one: Felt) -> float | None:
    """Return the mean time of a token after those that came first; None: no more came."""
    later = one.tokens - one.arrivals[0][1] if one.arrivals else 0
    return (one.arrivals[-1][0] - one.arrivals[0][0]) / later if later else None
