"""A sequence of a request: its output and its reservations."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.engine.results.budget import PayloadReservation, Reservation
from headrace_engine.engine.results.pooled_states import PooledStates
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.text.stopping import Decoder, EndedDecoder
from headrace_engine.errors import HeadraceError
from headrace_engine.result_types import EndRecord, FinishReason, RequestStat, SequenceView


class Sequence:
    """A sequence of a request: its log, the decoder of its text, and its times.

    Args:
        key: its number in the core.
        prompt: prompt logprobs of its request; None: not requested.
        reservation: bytes reserved for its log, owned by it; None: it is not computed, and adopts a candidate's later.
        payload: reservation for the payload of its request, shared by all of its sequences.

    Attributes:
        states: the pooled last hidden states of its prompt; None: not requested.
    """

    def __init__(
        self,
        index: int,
        key: int,
        log: ResultLog,
        decoder: Decoder,
        times: SequenceTimes,
        *,
        prompt: PromptLog | None = None,
        reservation: Reservation | None = None,
        payload: PayloadReservation | None = None,
    ) -> None:
        self.index = index
        self.key = key
        self.log = log
        self.decoder = decoder
        self.times = times
        self.prompt = prompt
        self.states: PooledStates | None = None
        self._reservation = reservation
        self._payload = payload
        if payload is not None:
            payload.sequence_begins(log)

    @property
    def stat(self) -> RequestStat:
        """Statistics so far, or the final ones."""
        return self.log.end.stat if self.log.end else self.times.stat(max(len(self.log), self.log.searched))

    def finish(self, reason: FinishReason, now: float, error: HeadraceError | None = None) -> None:
        """Write the end record, and free everything that only a running sequence needs."""
        self.times.finished = now
        text = self.decoder.flush()
        length = len(self.log)
        record = EndRecord(reason, length, text, self.log.checksum, self.times.stat(length))
        stop = self.decoder.stop if reason is FinishReason.STOP_WORD else None
        self.log.finish(replace(record, stop=stop, error=error))
        self.decoder = EndedDecoder(self.decoder.stop)
        if self._reservation is not None:
            self._reservation.settle(length)
        # Shared with the other sequences: with the last end, what only running ones need is given back.
        if self._payload is not None:
            self._payload.sequence_ended(self.log)

    def adopt(self, other: Sequence) -> None:
        """Take over the reservations of another sequence: this one gives them back from here on."""
        self._reservation, self._payload = other._reservation, other._payload
        other._reservation = other._payload = None

    def give_back(self) -> None:
        """Give back the reservation for its log, which has no readers."""
        if self._reservation is not None:
            self._reservation.give_back()

    def release(self) -> None:
        """Have reads raise NotFound, and give back the reservations."""
        self.log.release()
        self.give_back()
        if self._payload is not None:
            self._payload.give_back()

    def view(self) -> SequenceView:
        """Return the sequence's current state."""
        return SequenceView(
            index=self.index,
            status=self.log.status,
            generated_length=len(self.log),
            checksum=self.log.checksum,
            stat=self.stat,
            end=self.log.end,
            prefix=self.log.prefix,
            first_position=self.log.first_position,
        )
