"""best_of: candidates that are not readable until all of them have ended; a request returns the best."""

from __future__ import annotations

import math
from dataclasses import replace

from headrace_engine.engine.results.budget import PayloadReservation, Reservation
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.text.stopping import Decoder
from headrace_engine.errors import HeadraceError, Internal
from headrace_engine.result_types import FinishReason, GenerateStatus

_CUT_SHORT = frozenset({FinishReason.STOPPED, FinishReason.DEADLINE})
"""Finish reasons that are neither failures nor caused by the generated text."""

_ELSEWHERE = frozenset({FinishReason.DRAINED, FinishReason.ENGINE_LOST})
"""Finish reasons upon which another engine computes all candidates anew; the best of those need not begin alike."""


class BestOf:
    """Ranks candidates once all of them have ended, and moves the best into the sequences that readers see.

    Args:
        shown: the sequences that readers see, by index; not computed themselves. Those with an end are not changed.
        length_penalty: exponent of the length, in the score.

    Attributes:
        candidates: the sequences that are computed; empty once the best are selected.
    """

    def __init__(self, shown: list[Sequence], length_penalty: float) -> None:
        self._shown = shown
        self._length_penalty = length_penalty
        self.candidates: list[Sequence] = []

    def add(self, candidate: Candidate) -> None:
        """Add a candidate, before any has ended."""
        self.candidates.append(candidate)

    def select(self, now: float) -> None:
        """Select the best if all candidates have ended; the visible sequences take over their reservations."""
        if any(candidate.log.end is None for candidate in self.candidates):
            return
        ranked = sorted(self.candidates, key=self._rank)
        self.candidates = []
        for shown, candidate in zip(self._shown, ranked, strict=False):
            # Even if it is not shown: the request gives back reservations through the sequences that readers see.
            shown.adopt(candidate)
            if shown.log.end is None:
                _show(shown, candidate, now)
        for loser in ranked[len(self._shown) :]:
            # Its log only: the payload is the request's, and the sequences that readers see give it back.
            loser.give_back()

    def _rank(self, candidate: Sequence) -> tuple[int, float, int]:
        """Return the sort key: ended by themselves first, then cut short, then failed; within these by score."""
        assert candidate.log.end is not None, "candidates are ranked when all have ended"
        length = len(candidate.log)
        details = candidate.log.contents.details(0, length)
        logprobs = details and details.token_logprobs
        score = cost(math.fsum(logprobs or ()), length, self._length_penalty)
        return _tier(candidate.log.end.finish_reason), score, candidate.index


class Candidate(Sequence):
    """A sequence that may be selected. Its own index seeds its random numbers; its rank decides where readers see it.

    Args:
        best_of: selects among this and the other candidates.
    """

    def __init__(
        self,
        index: int,
        key: int,
        log: ResultLog,
        decoder: Decoder,
        times: SequenceTimes,
        best_of: BestOf,
        prompt: PromptLog | None,
        reservation: Reservation,
        payload: PayloadReservation,
    ) -> None:
        super().__init__(index, key, log, decoder, times, prompt=prompt, reservation=reservation, payload=payload)
        self._best_of = best_of

    def finish(self, reason: FinishReason, now: float, error: HeadraceError | None = None) -> None:
        """Write the end record. With that of the last candidate, the best are selected."""
        super().finish(reason, now, error)
        self._best_of.select(now)


def cost(logprob_sum: float, length: int, length_penalty: float) -> float:
    """Return a number that grows as logprob_sum / length ^ length_penalty falls; infinity without tokens."""
    if not length:
        return math.inf
    if logprob_sum >= 0:
        return -math.inf
    return math.log(-logprob_sum) - length_penalty * math.log(length)


def _tier(reason: FinishReason) -> int:
    if reason in _CUT_SHORT or reason.status is GenerateStatus.INTERRUPTED:
        return 1
    return 0 if reason.status is GenerateStatus.FINISHED else 2


def _show(shown: Sequence, candidate: Sequence, now: float) -> None:
    """Make a candidate visible to readers, from their positions on. For them it ends now."""
    log, end = shown.log, candidate.log.end
    assert end is not None, "a candidate is shown after its end"
    if end.finish_reason in _ELSEWHERE:
        shown.finish(end.finish_reason, now, end.error)
        return
    given = log.first_position
    if len(candidate.log) < given or candidate.log.checksum_before(given) != log.checksum:
        text = f"the best candidate does not begin with the {given} tokens that another engine delivered"
        shown.finish(FinishReason.ERROR, now, Internal(text))
        return
    times = candidate.times
    times.kept, times.handovers, times.finished = shown.times.kept, shown.times.handovers, now
    shown.times, shown.decoder = times, candidate.decoder
    log.show(candidate.log.contents)  # Owned by the visible log now; the candidate is dropped.
    log.finish(replace(end, stat=times.stat(end.position)))
