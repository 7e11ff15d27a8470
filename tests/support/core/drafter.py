"""A source of drafted ids that knows what sequences will generate, and errs as often as a test wants."""

from __future__ import annotations

from random import Random

from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.speculation.acceptance import Guess

from support.core.rig import Rig
from support.core.simulated import expected


class KnowingDrafter:
    """Drafts the ids that a sequence generates alone, some of them replaced.

    Args:
        seed: of what is replaced, and of how many are drafted.
        errors: share of the drafted ids that are replaced.
        ids: number of ids of the model.

    Attributes:
        answers: what each sequence generates in all, by key; others are guessed at random.
        drafted: number of ids drafted so far.
    """

    def __init__(self, seed: int, errors: float, ids: int) -> None:
        self._random = Random(seed)
        self._errors = errors
        self._ids = ids
        self.answers: dict[int, list[int]] = {}
        self.drafted = 0

    def learn(self, rig: Rig, key: int) -> None:
        """Learn what a sequence of a simulated core generates."""
        self.answers[key] = expected(rig.requests[key])

    def guess(self, sequence: Sequence, most: int) -> Guess:
        known = self.answers.get(sequence.key, [])[sequence.generated_length :]
        rows = range(self._random.randint(0, most))
        guesses = [self._guess(known[row] if row < len(known) else None) for row in rows]
        self.drafted += len(guesses)
        return Guess(guesses)

    def _guess(self, right: int | None) -> int:
        wrong = right is None or self._random.random() < self._errors
        return self._random.randrange(self._ids) if wrong else right
