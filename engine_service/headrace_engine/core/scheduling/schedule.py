"""One step as it was decided, and as it was launched."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_engine.core.flight import Flight, Landed
from headrace_engine.core.runner import NO_COPIES, BlockCopies, SequenceStep
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.messages import Scheduled


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may run.

    Attributes:
        max_batch: sequences in a step.
        max_tokens: tokens computed in a step, those of running generations included.
        patience: sequences that may start before an earlier one that lacks room; then all behind it wait.
        lookahead: sequences without room that a step looks past; it bounds what a long queue costs.
        caching: use the prefix cache for sequences that do not object.
    """

    max_batch: int
    max_tokens: int
    patience: int = 32
    lookahead: int = 16
    caching: bool = True

    @property
    def most(self) -> int:
        """Sequences that may run: each has a token of every step."""
        return min(self.max_batch, self.max_tokens)


@dataclass(slots=True)
class Row:
    """The next count ids of a sequence."""

    sequence: Sequence
    count: int

    @property
    def step(self) -> SequenceStep:
        """What the runner is to do."""
        return self.sequence.step(self.count)


@dataclass(slots=True)
class Schedule:
    """The rows of a step, and what had to happen for it.

    Attributes:
        budget: tokens that may still be added.
        prompts: of rows that go on with a prompt, the ids before them, and those that they compute.
        scheduled: sequences that are in a step for the first time.
        preempted: keys of sequences that gave their blocks up, and wait for others.
        interrupted: keys of sequences that gave their blocks up, and have ended.
        copies: blocks to copy before the rows are computed.
    """

    budget: int
    rows: list[Row] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    interrupted: list[int] = field(default_factory=list)
    copies: BlockCopies = NO_COPIES

    def add(self, sequence: Sequence) -> None:
        """Compute the one id of the sequence that is due, if the budget allows."""
        if self.budget:
            self.budget -= 1
            self.rows.append(Row(sequence, 1))

    def add_prompt(self, sequence: Sequence, count: int) -> None:
        """Compute the next ids of a prompt, or of what was computed before."""
        self.budget -= count
        self.prompts.append((sequence.position, count))
        self.rows.append(Row(sequence, count))


@dataclass(slots=True)
class Launched:
    """A step that the runner was given.

    Attributes:
        schedule: as it was decided; rows may be taken out of it, whose results are of no use.
        steps: what the runner was given, one a row.
        flight: brings what was drawn.
        started: when it was decided.
    """

    schedule: Schedule
    steps: list[SequenceStep]
    flight: Flight
    started: float

    @property
    def living(self) -> list[Row]:
        """The rows of sequences that have not ended since."""
        return [row for row in self.schedule.rows if row.sequence.status is not SequenceStatus.ENDED]

    def expect(self) -> None:
        """It is under way: the next schedule goes on behind it."""
        for place, row in enumerate(self.schedule.rows):
            if row.sequence.status is SequenceStatus.RUNNING:
                row.sequence.expect(row.count, place if self.steps[place].sampling is not None else None)

    def empty(self) -> None:
        """What it computed is of no use: its rows have to be scheduled again."""
        self.schedule.rows, self.steps, self.flight = [], [], Landed([])
