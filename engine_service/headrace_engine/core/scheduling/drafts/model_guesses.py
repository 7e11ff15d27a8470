"""Has the draft model guess where its guesses gain more than they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Many

from headrace_engine.core.scheduling.drafts.draft_model import DraftModel
from headrace_engine.core.scheduling.drafts.drafters import up_to_end
from headrace_engine.core.scheduling.schedule import Row
from headrace_engine.core.scheduling.tables import BlockTables
from headrace_engine.core.speculation.acceptance import Guess
from headrace_engine.core.speculation.choice import best_depth
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.core.speculation.trials import Trials

_KIND = "model"

_WEIGHT = 1 / 8
"""Weight of the newest guesses in what they take beyond the steps of the draft model."""

_MOST_CHANGE = 4.0
"""Maximum factor by which the time of one round of guesses counts as more than expected: it may have been delayed."""


class ModelGuesses:
    """Guesses of the draft model, for sequences whose ids it is likelier to hit than what is guessed for nothing.

    Args:
        model: generates them.
        most_drafts: maximum number of drafted ids of a sequence in a step.
        costs: the time of the model's steps, which is measured elsewhere.
        clock: seconds.
    """

    def __init__(
        self, model: DraftModel, most_drafts: int, costs: RowCosts, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._most_drafts = most_drafts
        self._costs = costs
        self._clock = clock
        self._trials = Trials()
        self._gains = False
        self._overhead = 1.0

    def guess(
        self, rows: Many[Row], free: Many[Many[float]], most: int, tables: BlockTables, reserve: int
    ) -> dict[int, Guess]:
        """Return guesses for some rows of a step, by number. Their sequences get blocks for them.

        Args:
            free: of each row, how likely each id is to hold that is guessed without the draft model.
            most: maximum number of guessed ids in all.
            reserve: number of blocks to leave to other sequences.
        """
        wanted = self._wanted(rows, free, most)
        sequences = {rows[number].sequence: number for number in wanted}
        ready = self._model.catch_up(list(sequences))
        given = {each: tables.reserve_blocks(each, wanted[sequences[each]], reserve) for each in ready}
        began = self._clock()
        drafts = self._model.draft({each: count for each, count in given.items() if count})
        self._note(drafts.values(), self._clock() - began)
        if drafts and not self._gains:
            self._trials.note_tried()
        return {sequences[each]: Guess(up_to_end(each, ids), _KIND) for each, ids in drafts.items()}

    def _note(self, drafts: Collection[Many[int]], seconds: float) -> None:
        """Learn how much longer guesses take than the draft model's steps of one id a row."""
        expected = self._overhead * self._model.costs.of(len(drafts)) * max(map(len, drafts), default=0)
        if expected > 0 and seconds > 0:
            error = min(max(seconds / expected, 1 / _MOST_CHANGE), _MOST_CHANGE)
            self._overhead *= error**_WEIGHT

    def _wanted(self, rows: Many[Row], free: Many[Many[float]], most: int) -> Mapping[int, int]:
        """Return how many ids to generate for some of the rows, by number."""
        chances = self._chances(rows)
        better = [number for number in chances if not free[number] or chances[number][0] > free[number][0]]
        better = sorted(better, key=lambda number: chances[number][0], reverse=True)[:most]
        likely = {number: chances[number] for number in better}
        depth = best_depth(free, likely, most, self._costs, self._overhead * self._model.costs.of(len(likely)))
        self._gains = depth > 0
        if depth:
            self._trials.note_gain()
            return {number: min(depth, len(row)) for number, row in likely.items()}
        if not chances or not self._trials.due():
            return {}
        number = min(chances, key=lambda number: self._model.behind(rows[number].sequence))
        return {number: 1}

    def _chances(self, rows: Many[Row]) -> dict[int, list[float]]:
        """Return how likely each id is to hold that the draft model would generate, of the rows that it may."""
        found = {}
        for number, row in enumerate(rows):
            sequence = row.sequence
            if sequence.may_draft and sequence.checked is not None and (most := self._model.most(sequence)) > 0:
                found[number] = sequence.checked.chances(_KIND, min(most, self._most_drafts))
        return found
