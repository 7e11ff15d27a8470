"""Sequences that wait for blocks and a place in the batch."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import takewhile

from headrace_engine.core.scheduling.schedule import Limits
from headrace_engine.core.scheduling.sequence import Sequence

_FOR_ALL = 8
"""Times the patience after which a sequence goes before those of a higher priority."""

_SHORT = 6
"""Sequences of less than 2 to this power ids are alike."""


class WaitingQueue:
    """Keeps waiting sequences in the order of service.

    That is by priority; within one those that were preempted first, then by length, of which only powers of two count,
    and by arrival. Who waits while many leave the queue that came later is the first of its priority, and when they are
    many times as many, the first of all.

    Args:
        patience: how many these are.
    """

    def __init__(self, patience: int = 32) -> None:
        self._patience = patience
        self._sequences: list[Sequence] = []
        self._places: dict[Sequence, tuple[int, bool, int, int]] = {}
        self._ages: dict[int, OrderedDict[Sequence, int]] = {}
        self._pushed = self._removed = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """All in order, as they stand now: the queue may change meanwhile."""
        first: list[Sequence] = []
        ordered = list(self._sequences)
        for priority, ages in self._ages.items():
            oldest, before = next(iter(ages.items()))
            passed = self._removed - before  # As many more as still wait before it would make these no fewer.
            if passed < self._patience:
                continue
            oldest.overtaken = max(oldest.overtaken, self._patience)
            if passed >= self._patience * _FOR_ALL:
                first.append(oldest)
            else:
                ordered.remove(oldest)
                ordered.insert(bisect_left(ordered, -priority, key=lambda each: -each.priority), oldest)
        return iter(dict.fromkeys((*first, *ordered)))

    @property
    def free(self) -> int:
        """How many wait for no other one of their group."""
        return sum(not sequence.held for sequence in self._sequences)

    def push(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        self._places[sequence] = _place(sequence)
        insort(self._sequences, sequence, key=self._places.__getitem__)
        self._ages.setdefault(sequence.priority, OrderedDict())[sequence] = self._pushed
        self._pushed += 1

    def ahead(self, sequences: Collection[Sequence]) -> Iterator[Sequence]:
        """Those of these sequences that nobody else who may begin stands before, in order."""
        return takewhile(sequences.__contains__, (sequence for sequence in self if not sequence.held))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        self._sequences.remove(sequence)
        del self._places[sequence]
        ages = self._ages[sequence.priority]
        del ages[sequence]
        if not ages:
            del self._ages[sequence.priority]
        self._removed += 1


class Passed:
    """Sequences that a step found no room for, and went past, though not without limit.

    Args:
        limits: how many may be passed in a step, and how often one.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sequences: list[Sequence] = []
        self._skipped = 0

    def skip(self) -> None:
        """A sequence has to wait for others of its kind, and not for room: look at those behind it."""
        self._skipped += 1

    def add(self, sequence: Sequence) -> None:
        """There is no room for a sequence: look at those behind it."""
        self._sequences.append(sequence)

    def bars(self, sequence: Sequence) -> bool:
        """Whether a sequence, and so all behind it, may not start before those that were passed."""
        if len(self._sequences) + self._skipped > self._limits.lookahead:
            return True
        return any(sequence.priority < other.priority or self._stands_firm(other) for other in self._sequences)

    def note_overtaking(self) -> None:
        """A sequence has started before them."""
        for sequence in self._sequences:
            sequence.overtaken += 1

    def _stands_firm(self, sequence: Sequence) -> bool:
        """Whether a sequence without room lets nobody start before it: it gave way, or was overtaken, often enough."""
        return sequence.preemptions > 0 or sequence.overtaken >= self._limits.patience


def _place(sequence: Sequence) -> tuple[int, bool, int, int]:
    length = 0 if sequence.held else sequence.length  # Who is held will find its prompt computed.
    return -sequence.priority, not sequence.preemptions, max(_SHORT, length.bit_length()), sequence.arrival
