"""One step, as scheduled and as launched."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_engine.core.in_flight import FinishedStep, InFlightStep
from headrace_engine.core.runner import NO_COPIES, BlockCopies, SequenceStep
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.core.scheduling.drafts.drafted_steps import drafted_steps
from headrace_engine.core.scheduling.rows import next_row
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.ipc.step_output import Scheduled


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what may run.

    Attributes:
        max_batch: maximum number of sequences in a step.
        max_tokens: token budget of a step, decoded tokens included.
        patience: number of sequences that may start before an earlier one that lacks blocks; after that, all wait
            behind it.
        lookahead: number of sequences without blocks that a step skips; bounds the cost of a long queue.
        caching: use the prefix cache for sequences that do not opt out.
    """

    max_batch: int
    max_tokens: int
    patience: int = 32
    lookahead: int = 16
    caching: bool = True

    @property
    def most(self) -> int:
        """Maximum number of running sequences: each decodes one token in every step."""
        return min(self.max_batch, self.max_tokens)


@dataclass(slots=True)
class Row:
    """The next count ids of a sequence, and ids drafted for the tokens after them."""

    sequence: Sequence
    count: int
    drafts: list[int] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Number of rows that the runner gets for it: one, and one for each drafted id."""
        return 1 + len(self.drafts)

    def steps(self) -> list[SequenceStep]:
        """Return the rows as the runner gets them; drafts that its grammar does not allow are dropped."""
        if not self.drafts:
            return [next_row(self.sequence, self.count)]
        steps = drafted_steps(self.sequence, self.count, self.drafts)
        del self.drafts[len(steps) - 1 :]
        return steps


@dataclass(slots=True)
class Schedule:
    """The rows of a step, and everything that scheduling them entailed.

    Attributes:
        budget: number of tokens that may still be added.
        prompts: start and number of ids of each prefill row.
        scheduled: sequences that are in a step for the first time.
        preempted: keys of sequences that lost their blocks and wait to resume.
        interrupted: keys of sequences that lost their blocks and have ended.
        copies: blocks to copy before the rows are computed.
        drafting: seconds that it took to draft ids.
    """

    budget: int
    rows: list[Row] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    interrupted: list[int] = field(default_factory=list)
    copies: BlockCopies = NO_COPIES
    drafting: float = 0.0

    def steps(self) -> list[SequenceStep]:
        """Return the rows as the runner gets them."""
        return [step for row in self.rows for step in row.steps()]

    def add(self, sequence: Sequence) -> None:
        """Add a row for the one remaining id of a sequence, if the budget allows."""
        if self.budget:
            self.budget -= 1
            self.rows.append(Row(sequence, 1))

    def drop_rows(self, search: BeamSearch) -> None:
        """Remove the decode rows of a beam search, one of whose beams got no block."""
        kept = [row for row in self.rows if row.sequence.search is not search]
        self.budget += len(self.rows) - len(kept)
        self.rows = kept

    def add_prompt(self, sequence: Sequence, count: int) -> None:
        """Add a prefill row: the next ids of a prompt, or of a preempted sequence."""
        self.budget -= count
        self.prompts.append((sequence.position, count))
        self.rows.append(Row(sequence, count))


@dataclass(slots=True)
class LaunchedStep:
    """A step that was launched on the runner.

    Attributes:
        schedule: the schedule of the step; rows whose results are dropped may have been removed.
        steps: the rows as the runner got them, `Row.width` for each row of the schedule.
        handle: gives the results.
        started: time at which scheduling began.
    """

    schedule: Schedule
    steps: list[SequenceStep]
    handle: InFlightStep
    started: float

    @property
    def generating(self) -> int:
        """Number of its rows that compute one generated id each, drafted ones included."""
        return len(self.steps) - len(self.schedule.prompts)

    @property
    def live_rows(self) -> list[Row]:
        """The rows whose sequences have not ended since."""
        return [row for row in self.schedule.rows if row.sequence.status is not SequenceStatus.ENDED]

    def note_launch(self) -> None:
        """Mark the rows as in flight, so that the next schedule continues after them."""
        number = 0
        for row in self.schedule.rows:
            if row.sequence.status is SequenceStatus.RUNNING:
                samples = self.steps[number].sampling is not None
                row.sequence.note_launch(row.count, number if samples else None)
            number += row.width

    def discard(self) -> None:
        """Drop the results: the rows will be scheduled again."""
        # What else the schedule says is still to be reported: who was started, preempted or interrupted.
        self.schedule.rows, self.steps, self.handle = [], [], FinishedStep([])
