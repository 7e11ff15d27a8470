"""Divides a step among running prompts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from headrace_engine.core.scheduling.pace import Allowance
from headrace_engine.core.scheduling.sequence import Sequence

AT_ONCE = 4
"""Maximum number of long prompts running at once, of one priority or higher: more would only hold blocks."""

AGE = 16
"""Number of steps without progress after which a prompt gets a block before all others, whatever their priority."""

_SHARE = 1 / 4
"""Share of a step that goes to the prompt of each priority that has waited longest for its turn."""


class Sharing:
    """Divides a step among prompts.

    The highest priority takes all it needs, then the next. Within one, the shortest remainder goes first, so that a
    short prompt does not wait for long ones, except for a share that goes to the prompt whose turn was longest ago: so
    long ones advance together, however many short ones arrive. A prompt without progress for AGE steps gets a block.

    Args:
        allowance: the step's allowance.
        block: number of ids worth a row.
        number: number of the step.
    """

    def __init__(self, allowance: Allowance, block: int, number: int) -> None:
        self._allowance = allowance
        self._block = block
        self._number = number
        self._given: dict[Sequence, int] = {}

    def share(self, prompts: Collection[Sequence]) -> dict[Sequence, int]:
        """Return the number of ids for each prompt that gets a row."""
        late = [each for each in prompts if self._idle(each) >= AGE]
        if late:
            first = min(late, key=attrgetter("advanced", "arrival"))
            self._give(first, min(self._left(first), self._block, self._allowance.ids))
        for rivals in _by_priority(prompts):
            self._share_among(rivals)
        return self._given

    def _share_among(self, rivals: list[Sequence]) -> None:
        """Divide what is left among the prompts of one priority, shortest remainder first."""
        if len(rivals) > 1:
            turn = min(rivals, key=attrgetter("advanced", "arrival"))
            self._give(turn, self._turn_of(turn))
        for sequence in rivals:
            left = self._left(sequence)
            self._give(sequence, self._allowance.chunk(self._position(sequence), left))

    def _turn_of(self, sequence: Sequence) -> int:
        """Return the ids of a sequence's share; shares smaller than a block accumulate over steps."""
        left = self._left(sequence)
        count = self._allowance.fit(self._position(sequence), left, _SHARE)
        if count >= min(left, self._block):
            return count
        due = self._idle(sequence) * max(count, 1) >= min(left, self._block)
        return min(left, self._block, self._allowance.ids) if due else 0

    def _give(self, sequence: Sequence, count: int) -> None:
        if count:
            self._allowance.take(self._position(sequence), count)
            self._given[sequence] = self._given.get(sequence, 0) + count

    def _idle(self, sequence: Sequence) -> int:
        """Return the number of steps since a sequence made progress."""
        return self._number - sequence.advanced

    def _left(self, sequence: Sequence) -> int:
        return sequence.due - self._given.get(sequence, 0)

    def _position(self, sequence: Sequence) -> int:
        return sequence.position + self._given.get(sequence, 0)


def _by_priority(prompts: Iterable[Sequence]) -> Iterator[list[Sequence]]:
    """Yield the prompts of each priority, highest first, each sorted by the remainder, shortest first."""
    order = sorted(prompts, key=lambda each: (-each.priority, each.due, each.arrival))
    return (list(rivals) for _, rivals in groupby(order, attrgetter("priority")))


class Entrance:
    """Admits waiting prompts alongside running ones.

    A prompt that this step can compute whole is admitted. A longer one is admitted only while few of its priority or
    higher are running: each holds blocks for all its ids.
    """

    def __init__(self, allowance: Allowance, prompts: Iterable[Sequence]) -> None:
        self._allowance = allowance
        self._needs = [(each.priority, each.due) for each in prompts]
        self._long = [priority for priority, _ in self._needs]

    def admits(self, sequence: Sequence, cached: int) -> bool:
        """Return True if a sequence may start now, with `cached` of its ids found in the cache."""
        return self._is_short(sequence, cached) or self._rivals(sequence.priority) < AT_ONCE

    def note(self, sequence: Sequence) -> None:
        """Record that a sequence has started."""
        if not self._is_short(sequence, sequence.position):
            self._long.append(sequence.priority)
        self._needs.append((sequence.priority, sequence.due))

    def _is_short(self, sequence: Sequence, cached: int) -> bool:
        """Return True if this step can compute it whole, after all that go before it."""
        need, priority = sequence.length - cached, sequence.priority
        before = sum(count for other, count in self._needs if other > priority or (other == priority and count <= need))
        wanted = before + need
        return self._allowance.fit(cached, wanted) >= wanted

    def _rivals(self, priority: int) -> int:
        return sum(other >= priority for other in self._long)
