"""Lets the draft model go on with sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from contextlib import ExitStack
from dataclasses import replace

from headrace_engine.core.runner import Sampled, SequenceStep
from headrace_engine.core.scheduling.drafts.drafted_steps import ahead, take_draft
from headrace_engine.core.scheduling.rows import with_rules
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.speculation.draft_state import DraftState, WrittenBlocks
from headrace_engine.core.speculation.row_costs import RowCosts
from headrace_engine.ipc.plans import MOST_DRAFT_TOKENS, MOST_ROWS

_AT_ONCE = MOST_DRAFT_TOKENS // MOST_ROWS
"""Maximum number of ids of a sequence that are computed with its first draft."""

_WORTH = 8
"""Maximum number of ids that are computed to catch up, for each that the sequence may still generate."""


class DraftModel:
    """Generates ids of sequences by the draft model, as the model would: by the same rules, with the same random words.

    It computes what it lacks of a sequence, into its own pool, which has the block tables of the model's.

    Args:
        run: computes steps; see Runner.draft.
        max_length: maximum number of ids of a sequence.
        costs: the time of its steps, which it goes on measuring.
        clock: seconds.

    Attributes:
        costs: the time of its steps.
    """

    def __init__(
        self,
        run: Callable[[Many[SequenceStep]], list[Sampled]],
        block_size: int,
        max_length: int,
        costs: RowCosts,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._block_size = block_size
        self._max_length = max_length
        self.costs = costs
        self._clock = clock
        self._written = WrittenBlocks()

    def most(self, sequence: Sequence) -> int:
        """Return how many ids it may draft for a sequence; 0 as well where catching up would not be worth it."""
        rest = sequence.longest + 1 - len(sequence.ids)
        return 0 if self.behind(sequence) > _WORTH * rest else min(rest, self._max_length - len(sequence.ids))

    def behind(self, sequence: Sequence) -> int:
        """Return how many ids of a sequence it has yet to compute."""
        return len(sequence.ids) - self._state(sequence).computed

    def catch_up(self, sequences: Many[Sequence]) -> list[Sequence]:
        """Compute ids of sequences that it lacks, a bounded number; return those sequences that it can draft for."""
        budget, ready = MOST_DRAFT_TOKENS, []
        for sequence in sequences:
            state, end = self._found(sequence), self._first_row(sequence, sequences)
            if end > state.computed and budget:
                begin, end = state.computed, min(end, state.computed + budget)
                self._compute([self._row(sequence, begin, end)], [sequence])
                state.advance(sequence.ids, end, self._block_size, self._written)
                budget -= end - begin
            if self._first_row(sequence, sequences) <= state.computed:
                ready.append(sequence)
        return ready

    def draft(self, counts: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return the ids that it generates for sequences that have caught up, at most as many as wanted for each.

        The sequences have blocks for these ids. There are fewer where a grammar does not allow more.
        """
        found: dict[Sequence, list[int]] = {sequence: [] for sequence in counts}
        with ExitStack() as stack:
            for sequence in counts:
                stack.enter_context(ahead(sequence))
            for number in range(max(counts.values(), default=0)):
                active = [each for each, most in counts.items() if len(found[each]) == number < most]
                if not active:
                    break
                rows = [self._row(each, self._computed(each, number), len(each.ids)) for each in active]
                for sequence, result in zip(active, self._compute(rows, active), strict=True):
                    if result.token_id is not None and take_draft(sequence, result.token_id):
                        found[sequence].append(result.token_id)
        for sequence, ids in found.items():
            state = self._state(sequence)
            state.advance(sequence.ids, len(sequence.ids), self._block_size, self._written)
            state.tail = ids[:-1]
        return found

    def _computed(self, sequence: Sequence, drafts: int) -> int:
        """Return how many of a sequence's ids are in the pool, after some drafts."""
        return len(sequence.ids) - 1 if drafts else self._state(sequence).computed

    def _state(self, sequence: Sequence) -> DraftState:
        """Return what was computed of a sequence, brought up to date."""
        state = sequence.draft
        if state is None or not state.holds(sequence.blocks, sequence.preemptions):
            sequence.draft = state = self._find(sequence)
        elif state.tail:
            state.accept(sequence.ids, self._block_size, self._written)
        return state

    def _found(self, sequence: Sequence) -> DraftState:
        """Return what was computed of a sequence, with what others have computed of its blocks since."""
        state = self._state(sequence)
        if len(sequence.ids) - state.computed > self._block_size:
            found = self._find(sequence)
            if found.computed > state.computed:
                sequence.draft = state = found
        return state

    def _first_row(self, sequence: Sequence, others: Many[Sequence]) -> int:
        """Return how many ids have to be computed before a sequence may be in a step with the others.

        The step computes a bounded number of ids, and no two rows write to one block.
        """
        size, behind = self._block_size, len(sequence.ids) - _AT_ONCE
        number = self._state(sequence).computed // size
        whole = (len(sequence.ids) - 1) // size  # From here on, blocks are its own.
        shared = number < whole and any(
            other is not sequence and other.blocks[number : number + 1] == sequence.blocks[number : number + 1]
            for other in others
        )
        return max(behind, whole * size) if shared else behind

    def _find(self, sequence: Sequence) -> DraftState:
        args = sequence.ids, sequence.blocks, self._block_size, self._written, sequence.preemptions
        return DraftState.find(*args)

    def _row(self, sequence: Sequence, begin: int, end: int) -> SequenceStep:
        """Return a row that computes some ids of a sequence; after the last one it samples the next."""
        request = sequence.request
        if end < len(sequence.ids):
            return SequenceStep(sequence.ids[begin:end], begin, sequence.blocks)
        sampling = request.sampling
        if sampling.logprobs or sampling.top_logprobs:
            sampling = replace(sampling, logprobs=False, top_logprobs=0)
        step = SequenceStep(
            token_ids=sequence.ids[begin:end],
            start=begin,
            blocks=sequence.blocks,
            sampling=sampling,
            position=sequence.generated_length,
            index=request.index,
            masked_ids=sequence.masked_ids,
        )
        return step if request.rules is None and sequence.guide is None else with_rules(sequence, step)

    def _compute(self, rows: list[SequenceStep], sequences: Many[Sequence]) -> list[Sampled]:
        """Compute a row of each sequence."""
        for row, sequence in zip(rows, sequences, strict=True):
            end = -(-(row.start + len(row.token_ids)) // self._block_size)
            # Before the step: if it fails, nobody takes a half-written block for a full one.
            self._written.forget(row.blocks[row.start // self._block_size : end])
            assert sequence.draft is not None, "its state was looked up for the row"
            # Only numbers: the sequence owns the blocks, and when it has lost them, `DraftState.holds` is False.
            sequence.draft.blocks[:] = row.blocks[:end]
        began = self._clock()
        results = self._run(rows)
        if all(len(row.token_ids) == 1 for row in rows):
            self.costs.note(len(rows), self._clock() - began)
        return results
