"""Sequences that wait for blocks and a place in the batch."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

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

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        self._sequences.remove(sequence)


def _place(sequence: Sequence) -> tuple[int, bool, int]:
    return -sequence.priority, not sequence.preemptions, sequence.arrival
