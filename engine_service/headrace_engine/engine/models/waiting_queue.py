"""Sequences that were in no step yet, by what they may claim and by whose they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Waiting(NamedTuple):
    """What counts of a sequence while it waits.

    Attributes:
        party: in whose share it is.
        request: what it has in common with the others of its request, among those of the party.
    """

    priority: int
    party: str = ""
    request: int = 0


class WaitingLine:
    """Keys of sequences, counted by priority, by party and by request."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._by_priority: Counter[int] = Counter()
        self._by_party: Counter[str] = Counter()
        self._by_request: dict[str, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[int]:
        return iter(self._waiting)

    @property
    def requests(self) -> int:
        """Requests with a sequence that waits."""
        return sum(map(len, self._by_request.values()))

    def of(self, party: str) -> int:
        """Sequences of a party."""
        return self._by_party[party]

    def requests_of(self, party: str) -> int:
        """Requests of a party with a sequence that waits."""
        return len(self._by_request.get(party, ()))

    def add(self, key: int, waiting: Waiting) -> None:
        """A sequence waits from now on."""
        self._waiting[key] = waiting
        self._by_priority[waiting.priority] += 1
        self._by_party[waiting.party] += 1
        self._by_request.setdefault(waiting.party, Counter())[waiting.request] += 1

    def discard(self, key: int) -> None:
        """A sequence waits no more, if it did."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        _less(self._by_priority, waiting.priority)
        _less(self._by_party, waiting.party)
        _less(self._by_request[waiting.party], waiting.request)
        if not self._by_request[waiting.party]:
            del self._by_request[waiting.party]

    def ahead_of(self, priority: int) -> int:
        """How many of them are served before a sequence of this priority that arrives now."""
        return sum(count for each, count in self._by_priority.items() if each >= priority)


def _less(counts: Counter[T], one: T) -> None:
    counts[one] -= 1
    if not counts[one]:
        del counts[one]
