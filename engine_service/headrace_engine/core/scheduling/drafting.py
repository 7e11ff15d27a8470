"""Adds drafted ids to the rows of a step."""

from __future__ import annotations

from itertools import takewhile

from headrace_engine.core.scheduling.drafters import NO_GUESS, Drafter
from headrace_engine.core.scheduling.schedule import Schedule
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.speculation.acceptance import Checked, Guess, Likelihoods
from headrace_engine.core.speculation.choice import best_counts
from headrace_engine.core.speculation.row_costs import RowCosts


class Drafting:
    """Adds drafted ids to steps that only decode, where that gives more ids per second by what was measured.

    Args:
        drafter: guesses the ids.
        most_drafts: maximum number of drafted ids of a sequence in a step.
        most_rows: maximum number of rows of a step, drafted ones included.
        costs: the time of steps, which is measured elsewhere.
    """

    def __init__(self, drafter: Drafter, most_drafts: int, most_rows: int, costs: RowCosts) -> None:
        self._drafter = drafter
        self._most_drafts = most_drafts
        self._most_rows = most_rows
        self._costs = costs
        self._likelihoods = Likelihoods()

    def add_drafts(self, schedule: Schedule, tables: BlockTables, reserve: int) -> None:
        """Add drafted ids to the rows of a step.

        Args:
            reserve: number of blocks to leave to other sequences.
        """
        most = min(schedule.budget, self._most_rows - len(schedule.rows))
        if most <= 0:
            return
        guesses = [self._guess(row.sequence) for row in schedule.rows]
        likelihoods = [self._expect(row.sequence, guess) for row, guess in zip(schedule.rows, guesses, strict=True)]
        counts = best_counts(likelihoods, most, self._costs)
        for row, guess, count in zip(schedule.rows, guesses, counts, strict=True):
            if count:
                row.drafts = list(guess.ids[: tables.reserve_blocks(row.sequence, count, reserve)])

    def _guess(self, sequence: Sequence) -> Guess:
        if not sequence.may_draft:
            return NO_GUESS
        guess = self._drafter.guess(sequence, self._most_drafts)
        # Nothing follows an id that ends the sequence.
        ends = (*sequence.request.eos_ids, *sequence.request.stop_ids)
        return Guess(list(takewhile(lambda token_id: token_id not in ends, guess.ids)), guess.kind)

    def _expect(self, sequence: Sequence, guess: Guess) -> list[float]:
        if sequence.checked is None:
            sequence.checked = Checked(self._likelihoods)
        sequence.checked.check(sequence.ids)
        return sequence.checked.expect(sequence.ids, guess)
