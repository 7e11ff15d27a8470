"""Sequences that wait for blocks and a place in the batch."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from itertools import takewhile

from headrace_engine.core.schedule import Limits
from headrace_engine.core.sequence import Sequence


class WaitingQueue:
    """Keeps waiting sequences in the order of service: by priority; within one, preempted ones first; by arrival."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """All in order, as they stand now: the queue may change meanwhile."""
        return iter(tuple(self._sequences))

    def push(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._sequences, sequence, key=_place)

    def ahead(self, sequences: Collection[Sequence]) -> Iterator[Sequence]:
        """Those of these sequences that nobody else who may begin stands before, in order."""
        return takewhile(sequences.__contains__, (sequence for sequence in self if not sequence.held))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        self._sequences.remove(sequence)


class Passed:
    """Sequences that a step found no room for, and went past, though not without limit.

    Args:
        limits: how many may be passed in a step, and how often one.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sequences: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """There is no room for a sequence: look at those behind it."""
        self._sequences.append(sequence)

    def bars(self, sequence: Sequence) -> bool:
        """Whether a sequence, and so all behind it, may not start before those that were passed."""
        if len(self._sequences) > self._limits.lookahead:
            return True
        return any(sequence.priority < other.priority or self._stands_firm(other) for other in self._sequences)

    def note_overtaking(self) -> None:
        """A sequence has started before them."""
        for sequence in self._sequences:
            sequence.overtaken += 1

    def _stands_firm(self, sequence: Sequence) -> bool:
        """Whether a sequence without room lets nobody start before it: it gave way, or was overtaken, often enough."""
        return sequence.preemptions > 0 or sequence.overtaken >= self._limits.patience


def _place(sequence: Sequence) -> tuple[int, bool, int]:
    return -sequence.priority, not sequence.preemptions, sequence.arrival
