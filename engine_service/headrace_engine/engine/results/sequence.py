"""One sequence of a request: what it generates, and what is reserved for it."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.engine.results.budget import PayloadReservation, Reservation
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.text.stopping import Decoder, EndedDecoder
from headrace_engine.errors import HeadraceError
from headrace_engine.result_types import EndRecord, FinishReason, RequestStat, SequenceView


class Sequence:
    """One of a request's sequences: its log, the decoder of its text, and what happened when.

    Args:
        key: the number that the core knows it by.
        prompt: the log of its request's prompt; None: it did not ask for one.
        reservation: for its log; None: nothing is computed for it, before it shows what another one generated.
        payload: the reservation for what its request sent, which all of its sequences share.
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
        self._reservation = reservation
        self._payload = payload

    @property
    def stat(self) -> RequestStat:
        """Statistics so far, or the final ones."""
        return self.log.end.stat if self.log.end else self.times.stat(len(self.log))

    def finish(self, reason: FinishReason, now: float, error: HeadraceError | None = None) -> None:
        """Write the end record, and let go of what only a sequence that runs needs."""
        self.times.finished = now
        text = self.decoder.flush()
        length = len(self.log)
        record = EndRecord(reason, length, text, self.log.checksum, self.times.stat(length))
        stop = self.decoder.stop if reason is FinishReason.STOP_WORD else None
        self.log.finish(replace(record, stop=stop, error=error))
        self.decoder = EndedDecoder(self.decoder.stop)
        if self._reservation is not None:
            self._reservation.settle(length)
        if self._payload is not None:
            self._payload.sequence_ended()

    def adopt(self, other: Sequence) -> None:
        """Take over what is reserved for another sequence: from here on this one gives it back."""
        self._reservation, self._payload = other._reservation, other._payload
        other._reservation = other._payload = None

    def give_back(self) -> None:
        """Give back what is reserved for its log, which nobody will read."""
        if self._reservation is not None:
            self._reservation.give_back()

    def release(self) -> None:
        """Let readers raise NotFound, and give back what is reserved for its request."""
        self.log.release()
        self.give_back()
        if self._payload is not None:
            self._payload.give_back()

    def view(self) -> SequenceView:
        """Return the sequence as it stands."""
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
