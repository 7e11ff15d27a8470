"""What steps bring: applied to their sequences, and sent to the front half."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_proto.pure.faults import is_fault

from headrace_engine.core.link import Link
from headrace_engine.core.runner import Sampled, Scores
from headrace_engine.core.scheduling.schedule import Row, Schedule
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus
from headrace_engine.core.steps.step_output import prompt_piece, step_output
from headrace_engine.errors import in_words
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.messages import Ended, PromptPiece
from headrace_engine.result_types import FinishReason
from headrace_engine.stat_types import CoreStat


class Outcome:
    """Collects what has happened since the last output, until it is published in the next one.

    Args:
        scheduler: has the sequences.
        link: where outputs go.
    """

    def __init__(self, scheduler: Scheduler, link: Link) -> None:
        self._scheduler = scheduler
        self._link = link
        self._drawn: dict[int, Sampled] = {}
        self._prompts: list[PromptPiece] = []
        self._ended: list[Ended] = []
        self._published = CoreStat()

    @property
    def waits(self) -> bool:
        """There is an end to tell."""
        return bool(self._ended)

    def end(self, sequence: Sequence, reason: FinishReason, error: str = "") -> None:
        """Compute a sequence no more, and tell it."""
        if error:
            self._scheduler.fail(sequence)
        else:
            self._scheduler.end(sequence)
        self._ended.append(Ended(sequence.key, reason, error))

    def refuse(self, key: int, error: Exception) -> None:
        """Tell why a sequence was never let in."""
        reason = FinishReason.RESPONSE_FORMAT_LIMIT if isinstance(error, GuideFailed) else FinishReason.ERROR
        self._ended.append(Ended(key, reason, str(error)))

    def interrupt(self, keys: Iterable[int]) -> None:
        """Tell that the scheduler has ended these."""
        self._ended += [Ended(key, FinishReason.INTERRUPTED) for key in keys]

    def apply(self, rows: list[Row], results: list[Sampled | None]) -> None:
        """Apply what the rows of a step brought to their sequences."""
        for row, result in zip(rows, results, strict=True):
            if row.sequence.status is SequenceStatus.ENDED:
                continue  # While its row was under way: what that drew is thrown away.
            if result is not None and result.error:
                self.end(row.sequence, FinishReason.ERROR, result.error)
                continue
            self._scheduler.advance(row)
            if result is not None:
                self._take(row.sequence, result)

    def publish(self, schedule: Schedule, seconds: float) -> None:
        """Tell the front half everything at once, if there is anything to tell.

        Args:
            schedule: of the step whose rows were applied.
            seconds: that it took.
        """
        stat = self._scheduler.stat
        if not (schedule.rows or schedule.scheduled or self._ended or stat != self._published):
            return
        output = step_output(schedule, self._drawn, self._prompts, self._ended, stat, seconds)
        self._drawn, self._prompts, self._ended = {}, [], []
        self._published = stat
        self._link.send(output)

    def _take(self, sequence: Sequence, result: Sampled) -> None:
        if result.scores is not None:
            self._tell_scores(sequence, result.scores)
            if sequence.remaining:
                return
        if self._take_token(sequence, result.token_id):
            self._drawn[sequence.key] = result

    def _take_token(self, sequence: Sequence, token_id: int | None) -> bool:
        """Append a token, and end the sequence where that is all; False where there was none to draw."""
        if token_id is None:
            self.end(sequence, FinishReason.NO_TOKEN_LEFT)
            return False
        self._scheduler.append(sequence, token_id)
        if reason := sequence.finish_reason:
            self.end(sequence, reason)
        elif sequence.guide is not None:
            self._guide(sequence, sequence.guide, token_id)
        return True

    def _tell_scores(self, sequence: Sequence, scores: Scores) -> None:
        self._prompts.append(prompt_piece(sequence.key, sequence.scored, scores))
        sequence.scored += len(scores.logprobs)

    def _guide(self, sequence: Sequence, guide: Guide, token_id: int) -> None:
        try:
            guide.take([token_id])
        except GuideFailed:
            self.end(sequence, FinishReason.RESPONSE_FORMAT_LIMIT)
        except BaseException as error:  # A panic of the library, say.
            if not is_fault(error):
                raise
            self.end(sequence, FinishReason.ERROR, f"response_format: its grammar failed: {in_words(error)}")
