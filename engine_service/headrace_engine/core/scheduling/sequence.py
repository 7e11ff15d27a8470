"""One sequence as the core sees it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace_engine.commands import AddSequence
from headrace_engine.core.kv.prefix_cache import Cursor
from headrace_engine.core.runner import Processing, Scoring, SequenceStep
from headrace_engine.core.scheduling.logit_state import LogitState
from headrace_engine.guided.guide import Guide
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import LogitRules

_UNKNOWN = (0,)
"""In the place of an id that is being drawn."""


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
        under_way: ids after those that a launched step is computing.
        drawing: place, in that step, of the row that draws the id which the sequence goes on with; None: it draws none,
            or the last one.
        pause: ids after which it computes nothing before the others of its group go on with it; None: it need not wait.
        held: it does not begin before the leader of its group has computed what they share.
        blocks: its block table.
        started: it was in a step before.
        preemptions: times that it gave up its blocks for others.
        overtaken: sequences behind it in the queue that started before it.
        advanced: number of the step in which it started, or last computed ids of its prompt.
        logits: what its ids make of its rules, from its first draw on; None: it has none, or has drawn nothing here.
        processed: the ids that its logits processors were given last.
        scored: the first prompt token whose log-probability nobody was told; token 0 has none.
        follows: what is done to its logits, or told of a token, depends on its ids.
        plain: nothing is asked but tokens drawn from the model's own logits.
    """

    request: AddSequence
    arrival: int
    cursor: Cursor | None = None
    guide: Guide | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    ids: list[int] = field(init=False)
    prompt_length: int = field(init=False)
    computed: int = 0
    under_way: int = 0
    drawing: int | None = None
    pause: int | None = None
    held: bool = False
    blocks: list[int] = field(default_factory=list)
    started: bool = False
    preemptions: int = 0
    overtaken: int = 0
    advanced: int = 0
    logits: LogitState | None = None
    processed: array[int] = field(default_factory=lambda: array("i"))
    scored: int = field(init=False)
    follows: bool = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.ids = [*request.prompt, *request.generated]
        self.prompt_length = len(request.prompt)
        self.tell_prompt()
        ruled = request.rules is not None or self.guide is not None or bool(request.processors)
        self.follows = ruled or request.tensors
        self.plain = not self.follows and request.prompt_logprobs is None

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
    def length(self) -> int:
        """Its ids, with one that is being drawn and has to be computed."""
        return len(self.ids) + (self.drawing is not None)

    @property
    def generated_length(self) -> int:
        """Tokens generated, by this core or before, with one that is being drawn and has to be computed."""
        return self.length - self.prompt_length

    @property
    def position(self) -> int:
        """Ids that are computed, or under way."""
        return self.computed + self.under_way

    @property
    def remaining(self) -> int:
        """Ids to compute, behind those under way, before the next one can be drawn; 0: none is to be drawn any more."""
        return self.length - self.position

    @property
    def due(self) -> int:
        """Of the remaining ids, those that may be computed now."""
        return self.remaining if self.pause is None else max(0, self.pause - self.position)

    @property
    def awaited(self) -> bool:
        """Its next step cannot be decided before the one under way has landed."""
        return (self.follows and self.drawing is not None) or (self.under_way > 0 and self.scoring)

    @property
    def scoring(self) -> bool:
        """Log-probabilities of its prompt are still to be told, so all of the prompt is computed, cached or not."""
        return self.request.prompt_logprobs is not None and self.scored < self.prompt_length

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

    def tell_prompt(self) -> None:
        """Tell what its request asks of the prompt, from the beginning, or where an earlier core ended."""
        self.scored = max(1, self.request.scored)

    def tell_no_prompt(self) -> None:
        """Another one tells it."""
        self.scored = self.prompt_length

    def expect(self, count: int, place: int | None) -> None:
        """A step that computes its next count ids was launched, and goes on behind what has landed.

        Args:
            place: of its row, if that draws.
        """
        self.under_way = count
        last = self.generated_length + 1 == self.request.max_new
        self.drawing = None if last else place

    def land(self, count: int) -> None:
        """Its next count ids were computed, whether that was expected or not."""
        self.computed += count
        self.call_back()

    def call_back(self) -> None:
        """Nothing is under way."""
        self.under_way, self.drawing = 0, None

    def step(self, count: int) -> SequenceStep:
        """Its share of a step that computes the next count ids; the last of them draws a token."""
        draws, start = count == self.remaining, self.position
        step = SequenceStep(
            token_ids=self.ids[start : start + count] if self.drawing is None else _UNKNOWN,
            start=start,
            blocks=self.blocks,
            sampling=self.request.sampling if draws else None,
            position=self.generated_length,
            index=self.request.index,
            masked_ids=self.masked_ids,
            drawn_at=self.drawing,
        )
        return step if self.plain else self._asked(step)

    def _asked(self, step: SequenceStep) -> SequenceStep:
        """A step with all that its request asks for."""
        draws = step.sampling is not None
        if draws and (self.request.rules is not None or self.guide is not None):
            step = self._ruled(step)
        scoring = self._scoring(step) if self.scoring else None
        processing = self._processing() if draws and self.request.processors else None
        return replace(step, processing=processing, scoring=scoring, tensors=draws and self.request.tensors)

    def _scoring(self, step: SequenceStep) -> Scoring | None:
        """What a step tells of the prompt that was not told yet: its rows may have been computed before."""
        first, last = self.scored, min(step.start + len(step.token_ids) + 1, self.prompt_length)
        if first >= last:
            return None
        return Scoring(first - 1 - step.start, self.ids[first:last], self.request.prompt_logprobs or 0)

    def _processing(self) -> Processing:
        """What its logits processors are given, at the cost of the ids that are new."""
        self.processed.extend(self.ids[len(self.processed) :])
        return Processing(self.request.processors, self.processed)

    def _ruled(self, step: SequenceStep) -> SequenceStep:
        """A step that draws as its rules, its grammar and its ids so far say."""
        if self.logits is None:
            self.logits = LogitState(self.request.rules or LogitRules(), self.prompt_length, self.guide)
        masked = (*step.masked_ids, *self.logits.follow(self.ids))
        return replace(step, masked_ids=masked, changes=self.logits.changes)
