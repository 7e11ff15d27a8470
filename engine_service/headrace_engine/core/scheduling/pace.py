"""How much of its prompts a step computes, by what steps have taken so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

RELAXED = 5
"""Times the target that a step may take while nobody streams and nobody waits."""

LONGEST = 0.1
"""Seconds of a step beside running streams, where no target was given: who reads along hardly feels such a pause."""

SHORTEST = 0.025
"""Seconds that such a step may take in any case: who reads along feels no pause of two frames of a screen."""

TIMES = 4
"""Times what its generations take alone, that such a step may take between the two: prompts have three parts of it."""

_SHORTEST_CONTEXT = 8
"""Contexts of less than 2 to this power cost alike."""

_WEIGHT = 1 / 8
"""Of the newest step without prompts in the mean of its class."""

_SHARE = 1 / 2
"""Of the target, and of what generations take, that prompts may take in any case: many streams would starve them."""

_LEAST_SHARE = 1 / 8
"""Of the time of a step that its prompts took at least, whatever its generations take alone."""

_MOST_CHANGE = 4.0
"""By which one step may seem to differ from what was expected of it: it may have been held up."""


class Pace:
    """Learns what steps take, and keeps them within a target.

    A step takes what its generations take, which is known from steps without prompts, and a time for each id of a
    prompt, by the length of the context behind it. Only ratios of what was expected and what was measured move these
    times, half of it a step, so that one step that was held up does not count for long.

    Args:
        target: seconds that a step beside running streams takes at most; 0: there is no target; None: TIMES what its
            generations take alone, within SHORTEST and LONGEST.
        block: ids that a step computes in any case.
    """

    def __init__(self, target: float | None = 0.0, block: int = 16) -> None:
        self.block = block
        self._target = target
        self._generating: dict[int, float] = {}
        self._by_context: dict[int, float] = {}

    @property
    def active(self) -> bool:
        """There is a target."""
        return self._target is None or self._target > 0

    def target(self, generating: int) -> float:
        """Seconds that a step takes at most in which so many sequences draw a token."""
        if self._target is not None:
            return self._target
        beside = self._time_of(generating) if generating else 0.0
        return min(LONGEST, max(SHORTEST, TIMES * beside)) if beside else LONGEST

    def allow(self, ids: int, generating: int, *, alone: bool) -> Allowance:
        """What the prompts of a step may take.

        Args:
            ids: that the step may compute beside its generations.
            generating: sequences that draw a token in it.
            alone: one prompt is computed, nobody streams and nobody waits.
        """
        if not self.active or not self._by_context:
            return Allowance(ids, block=self.block)
        most = self.target(generating) * (RELAXED if alone else 1)
        beside = self._time_of(generating)
        return Allowance(ids, max(most - beside, most * _SHARE, beside * _SHARE), self, self.block)

    def note(self, generating: int, prompts: Sequence[tuple[int, int]], seconds: float) -> None:
        """A step took this time.

        Args:
            generating: rows of it that were no prompts.
            prompts: of its other rows, the ids before them, and the ids computed.
        """
        if seconds <= 0 or not self.active:
            return
        if prompts:
            beside = self._time_of(generating)
            self._learn(prompts, max(seconds - beside, seconds * _LEAST_SHARE), self.target(generating))
        elif generating:
            size = generating.bit_length()
            before = self._generating.get(size, seconds)
            self._generating[size] = before + (min(seconds, before * _MOST_CHANGE) - before) * _WEIGHT

    def rate(self, position: int) -> float:
        """Seconds for an id with so many before it; of lengths not seen yet, what the nearest shorter one takes."""
        size = _size(position)
        if size in self._by_context:
            return self._by_context[size]
        shorter = [each for each in self._by_context if each < size]
        return self._by_context[max(shorter) if shorter else min(self._by_context)]

    def _time_of(self, generating: int) -> float:
        """Seconds of a step without prompts."""
        size = max(1, generating).bit_length()
        known = [each for each in self._generating if each <= size]
        return self._generating[max(known)] if known else 0.0

    def _learn(self, prompts: Sequence[tuple[int, int]], seconds: float, target: float) -> None:
        middles = [(start + count // 2, count) for start, count in prompts]
        ids = sum(count for _, count in middles)
        expected = [count * self.rate(position) for position, count in middles] if self._by_context else [0.0]
        whole = sum(expected)
        if max(seconds, whole) < target / 4 and ids < 4 * self.block:
            return  # Of so few ids it is the step itself that takes the time.
        if not self._by_context:
            self._by_context = {_size(position): seconds / ids for position, _ in middles}
            return
        error = min(max(seconds / whole, 1 / _MOST_CHANGE), _MOST_CHANGE)
        for (position, _), part in zip(middles, expected, strict=True):
            self._by_context[_size(position)] = self.rate(position) * error ** (part / whole / 2)


class Allowance:
    """What the prompts of one step may still take, in ids and in seconds.

    Attributes:
        ids: left of what the step computes at most.
    """

    def __init__(self, ids: int, seconds: float = math.inf, pace: Pace | None = None, block: int = 16) -> None:
        self.ids = ids
        self._seconds = seconds
        self._pace = pace
        self._block = block
        self._taken = False

    def fit(self, start: int, wanted: int, share: float = 1.0) -> int:
        """Ids of a prompt from a position on that a share of what is left is enough for."""
        count = min(wanted, math.floor(self.ids * share))
        if self._pace is None or not count:
            return count
        most = self._seconds * share
        count = math.floor(min(count, most / self._pace.rate(start)))
        return math.floor(min(count, most / self._pace.rate(start + count // 2)))

    def chunk(self, start: int, wanted: int) -> int:
        """Ids of the next row: all that fit; of the step's first row a block at least, and no few ids after that."""
        count, least = self.fit(start, wanted), min(wanted, self._block, self.ids)
        if count >= least:
            return count
        return 0 if self._taken else least

    def take(self, start: int, count: int) -> None:
        """A row is computed."""
        self.ids -= count
        self._taken = True
        if self._pace is not None:
            self._seconds = max(0.0, self._seconds - count * self._pace.rate(start + count // 2))


def _size(position: int) -> int:
    return max(_SHORTEST_CONTEXT, position.bit_length())
