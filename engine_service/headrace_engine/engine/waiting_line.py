"""Sequences that were in no step yet, by what they may claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator


class WaitingLine:
    """Keys with their priorities, counted by priority."""

    def __init__(self) -> None:
        self._priorities: dict[int, int] = {}
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._priorities)

    def __iter__(self) -> Iterator[int]:
        return iter(self._priorities)

    def add(self, key: int, priority: int) -> None:
        """A sequence waits from now on."""
        self._priorities[key] = priority
        self._counts[priority] += 1

    def discard(self, key: int) -> None:
        """A sequence waits no more, if it did."""
        priority = self._priorities.pop(key, None)
        if priority is None:
            return
        self._counts[priority] -= 1
        if not self._counts[priority]:
            del self._counts[priority]

    def ahead_of(self, priority: int) -> int:
        """How many of them are served before a sequence of this priority that arrives now."""
        return sum(count for each, count in self._counts.items() if each >= priority)
