"""Fair shares of a common limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Party = TypeVar("Party")


class Shares(Generic[Party]):
    """Use of a common limit, by party.

    A party may hold up to three times as many as it leaves free, and always one as long as one is free. So the first
    party cannot take the last quarter, what it gives back goes first to parties that hold less, and parties that all
    want more than there is end up with equal shares. Nothing is reserved for a party that does not use it.

    Args:
        limit: maximum of all parties together.

    Attributes:
        taken: number taken by all parties together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._held: Counter[Party] = Counter()

    @property
    def parties(self) -> int:
        """Number of parties that hold something."""
        return len(self._held)

    def held(self, party: Party) -> int:
        """Return the amount that a party holds."""
        return self._held[party]

    def can_take(self, party: Party, count: int = 1) -> bool:
        """True if `count` more are within the party's share."""
        return within_share(self._held[party] + count, self.limit - self.taken - count)

    def refusal(self, party: Party, what: str, verb: str) -> str:
        """Return why a party may take no more, as text for people: "{verb} {number} {what}; …"."""
        left = self.limit - self.taken
        return f"{verb} {self._held[party]} {what}; of {self.limit} for all {left} are left, which others need"

    def take(self, party: Party, count: int = 1) -> None:
        """Count `count` more for a party."""
        self._held[party] += count
        self.taken += count

    def give_back(self, party: Party, count: int = 1) -> None:
        """Count `count` fewer for a party."""
        self._held[party] -= count
        self.taken -= count
        if not self._held[party]:
            del self._held[party]

    @contextmanager
    def holding(self, party: Party) -> Iterator[None]:
        """Count one more for a party within this context."""
        self.take(party)
        try:
            yield
        finally:
            self.give_back(party)


def within_share(held: int, free: int) -> bool:
    """True if a party may hold `held` when that leaves `free` to all others."""
    return free >= 0 and held <= max(1, 3 * free)
