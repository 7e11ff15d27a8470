"""Counts the sequences that have not been in a step yet, by priority and owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Waiting(NamedTuple):
    """The properties of a waiting sequence that are counted.

    Attributes:
        party: the caller in whose fair share it is.
        request: key that it shares with the other sequences of its request; unique within the party.
        weight: number of sequences that it counts as.
    """

    priority: int
    party: str = ""
    request: int = 0
    weight: int = 1


class WaitingQueue:
    """Keys of sequences, counted by priority, by party and by request."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._by_priority: Counter[int] = Counter()
        self._by_party: Counter[str] = Counter()
        self._by_request: dict[str, Counter[int]] = {}
        self._total = 0

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return self._total

    def __iter__(self) -> Iterator[int]:
        return iter(self._waiting)

    @property
    def requests(self) -> int:
        """Number of requests with a waiting sequence."""
        return sum(map(len, self._by_request.values()))

    def of(self, party: str) -> int:
        """Return the number of waiting sequences of a party."""
        return self._by_party[party]

    def requests_of(self, party: str) -> int:
        """Return the number of requests of a party with a waiting sequence."""
        return len(self._by_request.get(party, ()))

    def add(self, key: int, waiting: Waiting) -> None:
        """Add a waiting sequence."""
        self._waiting[key] = waiting
        self._total += waiting.weight
        self._by_priority[waiting.priority] += waiting.weight
        self._by_party[waiting.party] += waiting.weight
        self._by_request.setdefault(waiting.party, Counter())[waiting.request] += 1

    def discard(self, key: int) -> None:
        """Remove a sequence, if it is waiting."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        self._total -= waiting.weight
        _less(self._by_priority, waiting.priority, waiting.weight)
        _less(self._by_party, waiting.party, waiting.weight)
        _less(self._by_request[waiting.party], waiting.request)
        if not self._by_request[waiting.party]:
            del self._by_request[waiting.party]

    def ahead_of(self, priority: int) -> int:
        """Return the number of sequences that are served before a new one of this priority."""
        return sum(count for each, count in self._by_priority.items() if each >= priority)


def _less(counts: Counter[T], one: T, weight: int = 1) -> None:
    counts[one] -= weight
    if not counts[one]:
        del counts[one]
