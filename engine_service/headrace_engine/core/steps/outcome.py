"""Applies the results of steps to the scheduler, and reports them to the front half."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from headrace_proto.pure.faults import is_fault

from headrace_engine.core.link import Link
from headrace_engine.core.row_fields import PromptLogprobs
from headrace_engine.core.runner import Sampled
from headrace_engine.core.scheduling.beam_search import BeamSearch
from headrace_engine.core.scheduling.schedule import LaunchedStep, Row, Schedule
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.steps.found_texts import FoundTexts
from headrace_engine.core.steps.step_output import prompt_piece, step_output
from headrace_engine.errors import in_words
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.messages import StepBegun
from headrace_engine.ipc.step_output import Drafts, Ended, PooledPiece, PromptPiece
from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat


class Outcome:
    """Collects everything that happened since the last StepOutput, until it is published in the next one.

    Args:
        scheduler: owns the sequences.
        link: the link to publish on.
    """

    def __init__(self, scheduler: Scheduler, link: Link) -> None:
        self._scheduler = scheduler
        self._link = link
        self._sampled: list[tuple[int, Sampled]] = []
        self._prompts: list[PromptPiece] = []
        self._pooled: list[PooledPiece] = []
        self._drafts: list[Drafts] = []
        self._ended: list[Ended] = []
        self._found = FoundTexts()
        self._searched: dict[int, int] = {}
        self._published = CoreStat()
        self._begun: dict[int, None] = {}

    @property
    def pending(self) -> bool:
        """True if there are ends, or texts of beam searches, to publish."""
        return bool(self._ended or self._found)

    def drop(self, key: int) -> None:
        """Report no more of the text that a beam search found for a sequence."""
        self._found.drop(key)

    def end(self, sequence: Sequence, reason: FinishReason, error: str = "") -> None:
        """End a sequence and report it."""
        if error:
            self._scheduler.fail(sequence)
        else:
            self._scheduler.end(sequence)
        self._ended += [Ended(key, reason, error) for key in sequence.keys]

    def refuse(self, request: AddSequence, error: Exception) -> None:
        """Report the end of a sequence whose guide could not be compiled."""
        reason = FinishReason.RESPONSE_FORMAT_LIMIT if isinstance(error, GuideFailed) else FinishReason.ERROR
        keys = [request.key] if request.beams is None else [each.key for each in request.beams.wanted]
        self._ended += [Ended(key, reason, str(error)) for key in keys]

    def report_interrupted(self, keys: Iterable[int]) -> None:
        """Report sequences that the scheduler has ended."""
        self._ended += [Ended(key, FinishReason.INTERRUPTED) for key in keys]

    def report_begun(self, rows: list[Row], in_flight: LaunchedStep | None) -> None:
        """Send StepBegun before a step is computed, if its sequences are not those of the step before."""
        if rows:
            live = [] if in_flight is None else in_flight.live_rows
            keys = dict.fromkeys(key for row in (*live, *rows) for key in row.sequence.keys)
            if keys != self._begun:
                self._begun = keys
                self._link.send(StepBegun(list(keys)))

    def apply(self, rows: list[Row], results: list[Sampled | None]) -> None:
        """Apply the results of a step's rows, `Row.width` for each.

        A drafted id was computed rightly if it is the id sampled before it; the results from the first one on that is
        not are dropped.
        """
        remaining = iter(results)
        for row in rows:
            first, *others = islice(remaining, row.width)
            if row.sequence.ended:
                continue  # It ended while its row was in flight: the result is dropped.
            self._apply(row.sequence, row.count, first)
            if row.drafts:
                self._apply_drafts(row.sequence, row.drafts, others)

    def publish(self, schedule: Schedule, seconds: float) -> None:
        """Send one StepOutput, unless it would be empty.

        Args:
            schedule: the schedule of the step that was applied.
            seconds: duration of that step.
        """
        stat, cache = self._scheduler.stat, self._scheduler.take_cache_changes()
        tokens, ended = self._found.take()
        self._sampled += tokens
        self._ended += ended
        if not (schedule.rows or schedule.scheduled or tokens or self._ended or cache or stat != self._published):
            return
        parts = self._prompts, self._pooled, self._drafts, self._ended
        output = step_output(schedule, self._sampled, *parts, stat, seconds)
        output.cache, output.searched, self._searched = cache, self._searched, {}
        # New lists: the output is the front half's from here on, and not copied where the core is a thread beside it.
        self._sampled, self._prompts, self._pooled, self._drafts, self._ended = [], [], [], [], []
        self._published = stat
        self._link.send(output)

    def _apply_drafts(self, sequence: Sequence, drafts: list[int], results: list[Sampled | None]) -> None:
        """Apply the results of drafted ids, as far as they hold."""
        accepted = 0
        for draft, result in zip(drafts, results, strict=True):
            if sequence.ended or sequence.ids[-1] != draft:
                break
            self._apply(sequence, 1, result)
            accepted += 1
        self._scheduler.count_drafts(len(drafts), accepted)
        self._drafts.append(Drafts(sequence.key, len(drafts), accepted))

    def _apply(self, sequence: Sequence, count: int, result: Sampled | None) -> None:
        """Apply the result of a row that computed `count` ids."""
        if result is not None and result.error:
            self.end(sequence, FinishReason.ERROR, result.error)
            return
        self._scheduler.advance(sequence, count)
        if result is not None:
            self._apply_result(sequence, result)

    def _apply_result(self, sequence: Sequence, result: Sampled) -> None:
        if result.prompt_logprobs is not None:
            self._report_prompt(sequence, result.prompt_logprobs)
        if result.pooled:
            self._report_states(sequence, result.pooled)
        if (result.prompt_logprobs is not None or result.pooled) and sequence.remaining:
            return
        if sequence.search is not None:
            self._take_candidates(sequence, sequence.search, result)
        elif self._take_token(sequence, result.token_id):
            self._sampled.append((sequence.key, result))

    def _take_candidates(self, sequence: Sequence, search: BeamSearch, result: Sampled) -> None:
        """Take the candidates of a beam; with those of the last one, choose the next beams."""
        if result.candidates is None:  # Nothing changes them: they are the top logprobs.
            result = replace(result, candidates=[(token_id, value, value) for token_id, value in result.top])
        if not search.take(sequence, result):
            return
        with self._guiding(sequence):
            search.select()
        if sequence.ended:
            return
        self._scheduler.count_beams(search)
        self._searched |= dict.fromkeys(search.keys, search.length)
        if search.over:
            self._scheduler.end(sequence)
            self._found.add(search)

    def _take_token(self, sequence: Sequence, token_id: int | None) -> bool:
        """Append a token, and end the sequence if it is complete; return False if no token could be sampled."""
        if token_id is None:
            self.end(sequence, FinishReason.NO_TOKEN_LEFT)
            return False
        self._scheduler.append(sequence, token_id)
        if reason := sequence.finish_reason:
            self.end(sequence, reason)
        elif sequence.guide is not None:
            self._advance_guide(sequence, sequence.guide, token_id)
        return True

    def _report_prompt(self, sequence: Sequence, found: PromptLogprobs) -> None:
        self._prompts.append(prompt_piece(sequence.key, sequence.prompt_reported, found))
        sequence.prompt_reported += len(found.logprobs)

    def _report_states(self, sequence: Sequence, states: bytes) -> None:
        end = min(sequence.computed, sequence.prompt_length)
        self._pooled.append(PooledPiece(sequence.key, sequence.prompt_reported, end, states))
        sequence.prompt_reported = end

    def _advance_guide(self, sequence: Sequence, guide: Guide, token_id: int) -> None:
        with self._guiding(sequence):
            guide.take([token_id])

    @contextmanager
    def _guiding(self, sequence: Sequence) -> Iterator[None]:
        """End a sequence whose grammar cannot be followed."""
        try:
            yield
        except GuideFailed:
            self.end(sequence, FinishReason.RESPONSE_FORMAT_LIMIT)
        except BaseException as error:  # For example, a panic of the library.
            if not is_fault(error):
                raise
            self.end(sequence, FinishReason.ERROR, f"response_format: its grammar failed: {in_words(error)}")
