"""The queue of sequences that wait for blocks and a batch slot."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import groupby, takewhile

from headrace_engine.core.scheduling.schedule import Limits
from headrace_engine.core.scheduling.sequence import Sequence

_FOR_ALL = 8
"""Multiple of the patience after which a sequence goes before those of higher priority."""

_SHORT = 6
"""Sequences of fewer than 2 to this power ids count as equally long."""


class WaitingQueue:
    """Keeps waiting sequences in order of service.

    The order is by priority; within one, preempted sequences first, then by length rounded to a power of two, then by
    arrival. Of several owners, the one with the fewest slots, and the fewest further ahead, comes next, so that
    nobody waits for all that another has sent. A sequence overtaken by `patience` later ones becomes the first of its
    priority, and after a multiple of that the first of all.

    Args:
        patience: number of later sequences that may leave the queue first.
        running: the sequences in the batch.
    """

    def __init__(self, patience: int = 32, running: Collection[Sequence] = ()) -> None:
        self._patience = patience
        self._running = running
        self._sequences: list[Sequence] = []
        self._keys: dict[Sequence, tuple[int, bool, int, int]] = {}
        self._ages: dict[int, OrderedDict[Sequence, int]] = {}
        self._pushed = self._removed = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate in order over a snapshot of the queue, which may change during the iteration."""
        first: list[Sequence] = []
        ordered = list(self._sequences)
        for priority, ages in self._ages.items():
            oldest, before = next(iter(ages.items()))
            passed = self._removed - before  # Lower bound: all that arrived before it have left.
            if passed < self._patience:
                continue
            oldest.overtaken = max(oldest.overtaken, self._patience)
            if passed >= self._patience * _FOR_ALL:
                first.append(oldest)
            else:
                ordered.remove(oldest)
                ordered.insert(bisect_left(ordered, -priority, key=lambda each: -each.priority), oldest)
        return iter(dict.fromkeys((*first, *self._in_turns(ordered))))

    def _in_turns(self, ordered: list[Sequence]) -> Iterator[Sequence]:
        """Yield sequences in this order, but those of several owners in turns where nothing else tells them apart."""
        if len({sequence.request.owner for sequence in ordered}) < 2:
            yield from ordered
            return
        held: Counter[str] = Counter()
        for sequence in self._running:
            held[sequence.request.owner] += sequence.slots
        for _, alike in groupby(ordered, self._urgency):
            waiting: dict[str, deque[tuple[int, Sequence]]] = {}
            for number, sequence in enumerate(alike):
                waiting.setdefault(sequence.request.owner, deque()).append((number, sequence))
            heads = [(held[owner], own[0][0], owner) for owner, own in waiting.items()]
            heapify(heads)
            while heads:
                _, _, owner = heads[0]
                sequence = waiting[owner].popleft()[1]
                yield sequence
                held[owner] += sequence.slots
                if waiting[owner]:
                    heapreplace(heads, (held[owner], waiting[owner][0][0], owner))
                else:
                    heappop(heads)

    def _urgency(self, sequence: Sequence) -> tuple[int, bool]:
        return sequence.priority, bool(sequence.preemptions) or sequence.overtaken >= self._patience

    @property
    def free(self) -> int:
        """Number of sequences that do not wait for the leader of their group."""
        return sum(not sequence.held for sequence in self._sequences)

    def push(self, sequence: Sequence) -> None:
        """Insert a sequence."""
        self._keys[sequence] = _sort_key(sequence)
        insort(self._sequences, sequence, key=self._keys.__getitem__)
        self._ages.setdefault(sequence.priority, OrderedDict())[sequence] = self._pushed
        self._pushed += 1

    def ahead(self, sequences: Collection[Sequence]) -> Iterator[Sequence]:
        """Return, in order, those of the given sequences that are at the front of the queue, held ones aside."""
        return takewhile(sequences.__contains__, (sequence for sequence in self if not sequence.held))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence."""
        self._sequences.remove(sequence)
        del self._keys[sequence]
        ages = self._ages[sequence.priority]
        del ages[sequence]
        if not ages:
            del self._ages[sequence.priority]
        self._removed += 1


class PassedOver:
    """Sequences that a step passed over because they lack blocks; limits how often that may happen.

    Args:
        limits: bounds the number per step, and how often one sequence is overtaken.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sequences: list[Sequence] = []
        self._skipped = 0

    def skip(self) -> None:
        """Pass over a sequence that waits for other prompts rather than for blocks."""
        self._skipped += 1

    def add(self, sequence: Sequence) -> None:
        """Pass over a sequence that lacks blocks."""
        self._sequences.append(sequence)

    def must_wait(self, sequence: Sequence) -> bool:
        """Return True if a sequence, and so all behind it, must not start before those passed over."""
        if len(self._sequences) + self._skipped > self._limits.lookahead:
            return True
        return any(sequence.priority < other.priority or self._is_barrier(other) for other in self._sequences)

    def note_overtaking(self) -> None:
        """Record that a sequence has started before those passed over."""
        for sequence in self._sequences:
            sequence.overtaken += 1

    def _is_barrier(self, sequence: Sequence) -> bool:
        """Return True if a sequence was preempted, or overtaken often enough, so that none may start before it."""
        return sequence.preemptions > 0 or sequence.overtaken >= self._limits.patience


def _sort_key(sequence: Sequence) -> tuple[int, bool, int, int]:
    length = 0 if sequence.held else sequence.length  # A held sequence will find its prompt computed.
    return -sequence.priority, not sequence.preemptions, max(_SHORT, length.bit_length()), sequence.arrival
