"""Adds drafted ids to the rows of a step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace_proto.pure.faults import is_fault

from headrace_engine.core.scheduling.drafts.drafters import NO_GUESS, Drafter, up_to_end
from headrace_engine.core.scheduling.drafts.model_guesses import ModelGuesses
from headrace_engine.core.scheduling.schedule import Schedule
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.speculation.acceptance import Checked, Guess, Likelihoods
from headrace_engine.core.speculation.choice import best_counts
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.errors import in_words

_log = logging.getLogger(__name__)


_PLAIN = 16
"""Number of steps with drafts after which one goes without, to measure what those are compared with."""


class Drafting:
    """Adds drafted ids to steps that only decode, where that gives more ids per second by what was measured.

    Args:
        drafter: guesses the ids.
        most_drafts: maximum number of drafted ids of a sequence in a step.
        most_rows: maximum number of rows of a step, drafted ones included.
        costs: the time of steps, which is measured elsewhere.
        model: guesses by a draft model; None: there is none.
        clock: seconds.
    """

    def __init__(
        self,
        drafter: Drafter,
        most_drafts: int,
        most_rows: int,
        costs: RowCosts,
        model: ModelGuesses | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._drafter = drafter
        self._most_drafts = most_drafts
        self._most_rows = most_rows
        self._costs = costs
        self._model = model
        self._clock = clock
        self._likelihoods = Likelihoods()
        self._drafted = 0

    def add_drafts(self, schedule: Schedule, tables: BlockTables, reserve: int) -> None:
        """Add drafted ids to the rows of a step.

        Args:
            reserve: number of blocks to leave to other sequences.
        """
        most = min(schedule.budget, self._most_rows - len(schedule.rows))
        if most <= 0:
            return
        if self._drafted >= _PLAIN:
            self._drafted = 0
            return
        guesses = [self._guess(row.sequence) for row in schedule.rows]
        likelihoods = [self._expect(row.sequence, guess) for row, guess in zip(schedule.rows, guesses, strict=True)]
        if self._model is not None:
            began = self._clock()
            for number, guess in self._generate(self._model, schedule, likelihoods, most, tables, reserve).items():
                guesses[number] = guess
                likelihoods[number] = self._expect(schedule.rows[number].sequence, guess)
            schedule.drafting = self._clock() - began
        counts = best_counts(likelihoods, most, self._costs)
        for row, guess, count in zip(schedule.rows, guesses, counts, strict=True):
            if count:
                row.drafts = list(guess.ids[: tables.reserve_blocks(row.sequence, count, reserve)])
        self._drafted += any(counts)

    def _guess(self, sequence: Sequence) -> Guess:
        if not sequence.may_draft:
            return NO_GUESS
        guess = self._drafter.guess(sequence, self._most_drafts)
        return Guess(up_to_end(sequence, guess.ids), guess.kind)

    def _generate(
        self,
        model: ModelGuesses,
        schedule: Schedule,
        free: list[list[float]],
        most: int,
        tables: BlockTables,
        reserve: int,
    ) -> dict[int, Guess]:
        """Return the draft model's guesses. If it fails, the core goes on without it: nothing depends on it."""
        try:
            return model.guess(schedule.rows, free, most, tables, reserve)
        except BaseException as error:
            if not is_fault(error):
                raise
            _log.exception("draft_model_failed: %s; no ids are drafted by it any more", in_words(error))
            # Its own pool may hold anything now, but nothing else reads that one.
            self._model = None
            return {}

    def _expect(self, sequence: Sequence, guess: Guess) -> list[float]:
        if sequence.checked is None:
            sequence.checked = Checked(self._likelihoods)
        return sequence.checked.expect(sequence.ids, guess)
