"""Limits the prompt tokens of a step by the measured time of earlier steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

RELAXED = 5
"""Multiple of the target that a step may take while no sequence decodes and none waits."""

LONGEST = 0.1
"""Maximum seconds of a step that also decodes, if no target was given: readers hardly notice such a pause."""

SHORTEST = 0.025
"""Seconds that such a step may always take: readers do not notice a pause of two frames of a screen."""

TIMES = 4
"""Target between these two, as a multiple of the time of the decode rows alone: prompts get three parts of four."""

_SHORTEST_CONTEXT = 8
"""Contexts of fewer than 2 to this power tokens count as equally costly."""

_WEIGHT = 1 / 8
"""Weight of the newest decode-only step in the moving average of its class, if it was quicker than that."""

_WEIGHT_SLOWER = 1 / 64
"""Weight of a slower one: a step that other processes delayed is no reason for larger steps."""

_SHARE = 1 / 2
"""Fraction of the target, and of the decode time, that prompts may always take, so that decoding cannot starve them."""

_LEAST_SHARE = 1 / 8
"""Minimum fraction of a step's time that is attributed to its prompts, whatever its decode rows take alone."""

_MOST_CHANGE = 4.0
"""Maximum factor by which one measurement may deviate from its estimate: the step may have been delayed."""


class Pace:
    """Estimates step times, and keeps steps within a target.

    The time of a step is modelled as that of its decode rows, known from decode-only steps, plus a time per prompt id
    that depends on the length of the context before it. Estimates are corrected by the ratio of measured to expected
    time, by half of it per step, so that one delayed step has no lasting effect.

    Args:
        target: maximum seconds of a step that also decodes; 0: no target; None: TIMES the time of its decode rows
            alone, between SHORTEST and LONGEST.
        block: number of prompt ids that a step may always compute.
    """

    def __init__(self, target: float | None = 0.0, block: int = 16) -> None:
        self.block = block
        self._target = target
        self._generating: dict[int, float] = {}
        self._by_context: dict[int, float] = {}

    @property
    def active(self) -> bool:
        """True if there is a target."""
        return self._target is None or self._target > 0

    def target(self, generating: int) -> float:
        """Return the maximum seconds of a step in which this many sequences decode."""
        if self._target is not None:
            return self._target
        beside = self._time_of(generating) if generating else 0.0
        return min(LONGEST, max(SHORTEST, TIMES * beside)) if beside else LONGEST

    def allow(self, ids: int, generating: int, *, alone: bool) -> Allowance:
        """Return the allowance for the prompts of a step.

        Args:
            ids: token budget left after the decode rows.
            generating: number of decode rows.
            alone: there is a single prompt, no sequence decodes and none waits.
        """
        if not self.active or not self._by_context:
            return Allowance(ids, block=self.block)
        most = self.target(generating) * (RELAXED if alone else 1)
        beside = self._time_of(generating)
        return Allowance(ids, max(most - beside, most * _SHARE, beside * _SHARE), self, self.block)

    def note(self, generating: int, prompts: Sequence[tuple[int, int]], seconds: float) -> None:
        """Learn from the time of a step.

        Args:
            generating: number of its decode rows.
            prompts: start and number of ids of each prefill row.
        """
        if seconds <= 0 or not self.active:
            return
        if prompts:
            beside = self._time_of(generating)
            self._learn(prompts, max(seconds - beside, seconds * _LEAST_SHARE), self.target(generating))
        elif generating:
            size = generating.bit_length()
            before = self._generating.get(size, seconds)
            weight = _WEIGHT if seconds < before else _WEIGHT_SLOWER
            self._generating[size] = before + (min(seconds, before * _MOST_CHANGE) - before) * weight

    def rate(self, position: int) -> float:
        """Return seconds per prompt id at a position; the nearest shorter length stands in for unmeasured ones."""
        size = _size(position)
        if size in self._by_context:
            return self._by_context[size]
        shorter = [each for each in self._by_context if each < size]
        return self._by_context[max(shorter) if shorter else min(self._by_context)]

    def _time_of(self, generating: int) -> float:
        """Return the seconds of a decode-only step."""
        size = max(1, generating).bit_length()
        known = [each for each in self._generating if each <= size]
        return self._generating[max(known)] if known else 0.0

    def _learn(self, prompts: Sequence[tuple[int, int]], seconds: float, target: float) -> None:
        middles = [(start + count // 2, count) for start, count in prompts]
        ids = sum(count for _, count in middles)
        expected = [count * self.rate(position) for position, count in middles] if self._by_context else [0.0]
        whole = sum(expected)
        if max(seconds, whole) < target / 4 and ids < 4 * self.block:
            return  # With so few ids, the fixed cost of the step dominates.
        if not self._by_context:
            self._by_context = {_size(position): seconds / ids for position, _ in middles}
            return
        error = min(max(seconds / whole, 1 / _MOST_CHANGE), _MOST_CHANGE)
        for (position, _), part in zip(middles, expected, strict=True):
            self._by_context[_size(position)] = self.rate(position) * error ** (part / whole / 2)


class Allowance:
    """Budget left for the prompts of one step, in ids and in seconds.

    Attributes:
        ids: token budget left.
    """

    def __init__(self, ids: int, seconds: float = math.inf, pace: Pace | None = None, block: int = 16) -> None:
        self.ids = ids
        self._seconds = seconds
        self._pace = pace
        self._block = block
        self._taken = False

    def fit(self, start: int, wanted: int, share: float = 1.0) -> int:
        """Return the number of ids of a prompt, from a position on, that fit in a share of what is left."""
        count = min(wanted, math.floor(self.ids * share))
        if self._pace is None or not count:
            return count
        most = self._seconds * share
        count = math.floor(min(count, most / self._pace.rate(start)))
        return math.floor(min(count, most / self._pace.rate(start + count // 2)))

    def chunk(self, start: int, wanted: int) -> int:
        """Return the number of ids of the next row: all that fit, but a block at least, if need be by skipping the row.

        The first row of a step is never skipped.
        """
        count, least = self.fit(start, wanted), min(wanted, self._block, self.ids)
        if count >= least:
            return count
        return 0 if self._taken else least

    def take(self, start: int, count: int) -> None:
        """Deduct a row."""
        self.ids -= count
        self._taken = True
        if self._pace is not None:
            self._seconds = max(0.0, self._seconds - count * self._pace.rate(start + count // 2))


def _size(position: int) -> int:
    return max(_SHORTEST_CONTEXT, position.bit_length())
