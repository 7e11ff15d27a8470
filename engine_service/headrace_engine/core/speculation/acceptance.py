"""Estimates how likely guessed ids are to hold, from how often they did.

Guesses are checked against what was generated whether they were computed or not, so estimates stay current at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FIRST = 0.2
"""Likelihood of a kind of guess that was never checked: too low for a draft, since checks cost nothing."""

_OF_ALL = 1 / 64
"""Least weight of the newest check in the estimate of a kind, over all sequences."""

_OF_ONE = 1 / 8
"""Least weight of the newest check in the estimate of a kind in one sequence."""

_PRIOR = 3
"""Weight of what is assumed before the first check, in checks."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Ids that a sequence may generate next.

    Attributes:
        kind: guesses of one kind are about equally likely to hold.
    """

    ids: Sequence[int]
    kind: str = ""


class Likelihoods:
    """Likelihood that an id holds if those guessed before it did, by kind of guess.

    Args:
        weight: least weight of the newest check; first ones weigh more.
        prior: gives the likelihood of kinds that were not checked yet; None: `_FIRST`.
    """

    def __init__(self, weight: float = _OF_ALL, prior: Likelihoods | None = None) -> None:
        self._weight = weight
        self._prior = prior
        self._known: dict[str, tuple[float, int]] = {}

    def of(self, kind: str) -> float:
        """Return the likelihood of a kind."""
        if kind in self._known:
            return self._known[kind][0]
        return _FIRST if self._prior is None else self._prior.of(kind)

    def note(self, kind: str, held: bool) -> None:
        """Learn from an id of a guess."""
        before, count = self.of(kind), self._known[kind][1] if kind in self._known else 0
        weight = max(self._weight, 1 / (count + _PRIOR))
        self._known[kind] = before + (held - before) * weight, count + 1
        if self._prior is not None:
            self._prior.note(kind, held)


class Checked:
    """The guesses for one sequence, each checked once the sequence has gone on.

    Args:
        shared: the likelihoods over all sequences.
    """

    def __init__(self, shared: Likelihoods) -> None:
        self._likelihoods = Likelihoods(_OF_ONE, shared)
        self._guesses: list[Guess] = []
        self._begin = 0

    def check(self, ids: Sequence[int]) -> None:
        """Compare the last guesses with the ids that the sequence has now."""
        for guess in self._guesses:
            for guessed, generated in zip(guess.ids, ids[self._begin :], strict=False):
                self._likelihoods.note(guess.kind, guessed == generated)
                if guessed != generated:
                    break
        self._guesses, self._begin = [], len(ids)

    def expect(self, ids: Sequence[int], guess: Guess) -> list[float]:
        """Note a guess of what comes after these ids; return how likely each of its ids is to be reached and hold.

        Guesses of what comes after fewer ids are checked first.
        """
        if len(ids) != self._begin:
            self.check(ids)
        self._guesses.append(guess)
        return self.chances(guess.kind, len(guess.ids))

    def chances(self, kind: str, count: int) -> list[float]:
        """Return how likely each of `count` ids of a kind of guess is to be reached and hold."""
        likelihood = self._likelihoods.of(kind)
        return [likelihood ** (number + 1) for number in range(count)]
