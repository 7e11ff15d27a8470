"""One sequence as the core sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace_engine.config import LogitRules
from headrace_engine.core.logit_state import LogitState
from headrace_engine.core.prefix_cache import Cursor
from headrace_engine.core.runner import SequenceStep
from headrace_engine.guided.guide import Guide
from headrace_engine.messages import AddSequence
from headrace_engine.result_types import FinishReason


class SequenceStatus(StrEnum):
    """Who holds a sequence: the waiting queue, the running list, or nobody."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one sequence: what was asked for, the ids so far, and how many of them are in the KV pool.

    Attributes:
        request: the command that brought it.
        arrival: a number that grows with each sequence.
        cursor: its place in the prefix cache; None: it neither reads nor fills the cache.
        guide: where it stands in its grammar; None: it has none.
        ids: prompt and generated ids.
        prompt_length: how many of them are the prompt's.
        computed: leading ids whose keys and values are in `blocks`.
        blocks: its block table.
        started: it was in a step before.
        preemptions: times that it gave up its blocks for others.
        overtaken: sequences behind it in the queue that started before it.
        logits: what its ids make of its rules, from its first draw on; None: it has none, or has drawn nothing here.
    """

    request: AddSequence
    arrival: int
    cursor: Cursor | None = None
    guide: Guide | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    ids: list[int] = field(init=False)
    prompt_length: int = field(init=False)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    started: bool = False
    preemptions: int = 0
    overtaken: int = 0
    logits: LogitState | None = None

    def __post_init__(self) -> None:
        self.ids = [*self.request.prompt, *self.request.generated]
        self.prompt_length = len(self.request.prompt)

    @property
    def key(self) -> int:
        """The number that the front half gave it."""
        return self.request.key

    @property
    def priority(self) -> int:
        """Higher is served first."""
        return self.request.priority

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts sequences by what they may claim: priority, then arrival."""
        return -self.priority, self.arrival

    @property
    def generated_length(self) -> int:
        """Tokens generated, by this core or before."""
        return len(self.ids) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Ids still to compute before the next one can be drawn."""
        return len(self.ids) - self.computed

    @property
    def longest(self) -> int:
        """Tokens in the KV pool at the end, at most: the last one drawn is never computed."""
        return self.prompt_length + self.request.max_new - 1

    @property
    def masked_ids(self) -> tuple[int, ...]:
        """Ids that would end it too early now."""
        if self.generated_length >= self.request.min_new:
            return ()
        return self.request.eos_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the ids so far are all; None while there is more to generate."""
        generated = self.generated_length
        if generated > self.request.min_new:
            if self.ids[-1] in self.request.stop_ids:
                return FinishReason.STOP_WORD
            if self.ids[-1] in self.request.eos_ids:
                return FinishReason.EOS
        return FinishReason.MAX_LENGTH if generated >= self.request.max_new else None

    def step(self, count: int) -> SequenceStep:
        """Its share of a step that computes the next count ids; the last of them draws a token."""
        draws = count == self.remaining
        step = SequenceStep(
            token_ids=self.ids[self.computed : self.computed + count],
            start=self.computed,
            blocks=self.blocks,
            sampling=self.request.sampling if draws else None,
            position=self.generated_length,
            index=self.request.index,
            masked_ids=self.masked_ids,
        )
        free = self.request.rules is None and self.guide is None
        return step if free or not draws else self._ruled(step)

    def _ruled(self, step: SequenceStep) -> SequenceStep:
        """A step that draws as its rules, its grammar and its ids so far say."""
        if self.logits is None:
            self.logits = LogitState(self.request.rules or LogitRules(), self.prompt_length, self.guide)
        masked = (*step.masked_ids, *self.logits.follow(self.ids))
        return replace(step, masked_ids=masked, changes=self.logits.changes)
