"""The core's state of one sequence."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace_engine.core.kv.prefix_cache import Cursor
from headrace_engine.core.scheduling.logit_state import LogitState, RuleTables
from headrace_engine.core.speculation.acceptance import Checked
from headrace_engine.core.speculation.draft_state import DraftState
from headrace_engine.core.speculation.ngrams import Ngrams
from headrace_engine.guided.guide import Guide
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import LogitRules

if TYPE_CHECKING:
    from headrace_engine.core.scheduling.beam_search import BeamSearch


class SequenceStatus(StrEnum):
    """Owner of a sequence: the waiting queue, the running list, or none."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one sequence: its request, the ids so far, and how many of them are in the KV pool.

    Attributes:
        request: the command that added it.
        arrival: a number that grows with each sequence.
        cursor: its position in the prefix cache; None: it neither reads nor fills the cache.
        guide: follows its grammar; None: it has none.
        search: the beam search that it computes a beam of; None: it is a text of its own.
        ids: prompt and generated ids.
        prompt_length: number of prompt ids.
        computed: leading ids whose keys and values are in `blocks`.
        in_flight: number of ids after those that the in-flight step is computing.
        sampling_row: row of the in-flight step that samples the sequence's next id; None if none does, or if that id
            is the last one and will not be computed.
        pause: number of ids after which it waits for the others of its group; None: it does not wait.
        held: it must not start before the leader of its group has computed the shared blocks.
        blocks: its block table: it holds one reference to each of these blocks.
        started: it has been in a step.
        preemptions: number of times that it was preempted.
        overtaken: number of sequences behind it in the queue that started before it.
        advanced: number of the step in which it started, or last computed ids of its prompt.
        tables: those of its rules.
        logits: state of its rules, from the first token sampled here; None before, or without rules.
        ngrams: its ids as the n-gram look-up knows them; None before the first look-up.
        checked: guesses of its ids; None before the first.
        draft: what the draft model has computed of it; None before its first ids.
        processed: the ids last passed to its logits processors.
        prompt_reported: index of the next prompt token whose logprob, or last hidden state, is to be reported; token 0
            has no logprob.
        follows: the changes to its logits, or what it reports of a token, depend on its ids.
        plain: it requests nothing but tokens sampled from the model's own logits.
    """

    request: AddSequence
    arrival: int
    cursor: Cursor | None = None
    guide: Guide | None = None
    search: BeamSearch | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    ids: list[int] = field(init=False)
    prompt_length: int = field(init=False)
    computed: int = 0
    in_flight: int = 0
    sampling_row: int | None = None
    pause: int | None = None
    held: bool = False
    blocks: list[int] = field(default_factory=list)
    started: bool = False
    preemptions: int = 0
    overtaken: int = 0
    advanced: int = 0
    tables: RuleTables = field(init=False)
    logits: LogitState | None = None
    ngrams: Ngrams | None = None
    checked: Checked | None = None
    draft: DraftState | None = None
    processed: array[int] = field(default_factory=lambda: array("i"))
    prompt_reported: int = field(init=False)
    follows: bool = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.ids = [*request.prompt, *request.generated]
        self.prompt_length = len(request.prompt)
        self.tables = RuleTables(request.rules or LogitRules())
        self.report_prompt()
        ruled = request.rules is not None or self.guide is not None or bool(request.processors)
        self.follows = ruled or request.tensors or request.beams is not None
        self.plain = not self.follows and request.prompt_logprobs is None and request.pooled is None

    @property
    def key(self) -> int:
        """Number of the sequence, assigned by the front half; below 0 for beams that begin here."""
        return self.request.key

    @property
    def keys(self) -> list[int]:
        """The front half's numbers of the sequences that it is computed for."""
        return [self.key] if self.search is None else self.search.keys

    @property
    def slots(self) -> int:
        """Number of slots that it takes in the batch."""
        return 1 if self.search is None else self.search.slots(self)

    @property
    def ended(self) -> bool:
        """True if nothing more is computed for it."""
        return self.status is SequenceStatus.ENDED

    @property
    def priority(self) -> int:
        """Higher is served first."""
        return self.request.priority

    @property
    def precedence(self) -> tuple[int, int]:
        """Sort key: the highest priority first, then the earliest to arrive."""
        return -self.priority, self.arrival

    @property
    def length(self) -> int:
        """Number of its ids, including one that is being sampled and will have to be computed."""
        return len(self.ids) + (self.sampling_row is not None)

    @property
    def generated_length(self) -> int:
        """Number of generated tokens, here or by an earlier core, including one that is being sampled."""
        return self.length - self.prompt_length

    @property
    def position(self) -> int:
        """Number of ids that are computed or in flight."""
        return self.computed + self.in_flight

    @property
    def remaining(self) -> int:
        """Number of ids to compute, after those in flight, before the next one is sampled; 0: none will be."""
        return self.length - self.position

    @property
    def due(self) -> int:
        """Number of the remaining ids that may be computed now."""
        return self.remaining if self.pause is None else max(0, self.pause - self.position)

    @property
    def needs_results(self) -> bool:
        """True if its next row cannot be scheduled before the in-flight step has finished."""
        return (self.follows and self.sampling_row is not None) or (self.in_flight > 0 and self.reports_prompt)

    @property
    def reports_prompt(self) -> bool:
        """True if logprobs or last hidden states of the prompt are still to be reported: then all of it is computed."""
        asked = self.request.prompt_logprobs is not None or self.request.pooled is not None
        return asked and self.prompt_reported < self.prompt_length

    @property
    def may_draft(self) -> bool:
        """True if a step may compute drafted ids of it."""
        slow = self.guide is not None and not self.guide.drafts
        return self.request.use_speculation and self.search is None and not self.reports_prompt and not slow

    @property
    def longest(self) -> int:
        """Maximum number of its tokens in the KV pool: the last one sampled is never computed."""
        return self.prompt_length + self.request.max_new - 1

    @property
    def masked_ids(self) -> tuple[int, ...]:
        """Ids that would end it before min_new."""
        if self.generated_length >= self.request.min_new:
            return ()
        return self.request.eos_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Reason for which generation is complete; None while there is more to generate."""
        generated = self.generated_length
        if generated > self.request.min_new:
            if self.ids[-1] in self.request.stop_ids:
                return FinishReason.STOP_WORD
            if self.ids[-1] in self.request.eos_ids:
                return FinishReason.EOS
        return FinishReason.MAX_LENGTH if generated >= self.request.max_new else None

    def report_prompt(self) -> None:
        """Report what is requested of the prompt, from the start or from where an earlier core stopped."""
        first = 1 if self.request.pooled is None else self.request.pooled
        self.prompt_reported = max(first, self.request.prompt_reported)

    def skip_prompt(self) -> None:
        """Leave what is reported of the prompt to the leader of the group."""
        self.prompt_reported = self.prompt_length

    def note_launch(self, count: int, row: int | None) -> None:
        """Record that a step computing its next `count` ids was launched.

        Args:
            row: number of its row in that step, if it samples.
        """
        self.in_flight = count
        last = self.generated_length + 1 == self.request.max_new
        self.sampling_row = None if last else row

    def note_computed(self, count: int) -> None:
        """Record that its next `count` ids were computed."""
        self.computed += count
        self.clear_in_flight()

    def clear_in_flight(self) -> None:
        """Record that no step of it is in flight."""
        self.in_flight, self.sampling_row = 0, None

    def begin_again(self, ids: list[int], cursor: Cursor | None, guide: Guide | None) -> None:
        """Replace its text, with all that was derived from it. It has no blocks."""
        self.ids, self.cursor, self.guide = ids, cursor, guide
        self.logits = self.ngrams = self.checked = self.draft = None
        self.processed = array("i")

    def go_back(self, length: int, computed: int) -> None:
        """Restore the state when it had this many ids, and this many of them were computed: the rest was drafted."""
        if self.logits is not None:
            self.logits.go_back(self.ids, length)
        del self.ids[length:], self.processed[length:]
        self.computed = computed
