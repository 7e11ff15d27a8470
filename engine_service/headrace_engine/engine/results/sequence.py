"""One sequence of a request: what it generated, and what is reserved for it."""

from __future__ import annotations

from dataclasses import replace

from headrace_engine.engine.results.budget import Reservation
from headrace_engine.engine.results.prompt_log import PromptLog
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.statistics import SequenceTimes
from headrace_engine.engine.text.stopping import Decoder, Spent
from headrace_engine.errors import HeadraceError
from headrace_engine.result_types import EndRecord, FinishReason, RequestStat, SequenceView


class Sequence:
    """One of a request's sequences: its log, the decoder of its text, and what happened when.

    Args:
        key: the number that the core knows it by.

    Attributes:
        room: what is reserved for its log, until it is released.
        prompt: what is told of the request's prompt; None: it did not ask.
        luggage: what its request brought; None: it is in nobody's room.
    """

    def __init__(self, index: int, key: int, log: ResultLog, decoder: Decoder, times: SequenceTimes) -> None:
        self.index = index
        self.key = key
        self.log = log
        self.decoder = decoder
        self.times = times
        self.room: Reservation | None = None
        self.prompt: PromptLog | None = None
        self.luggage: Luggage | None = None

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
        self.decoder = Spent(self.decoder.stop)
        if self.room is not None:
            self.room.settle(length)
        if self.luggage is not None:
            self.luggage.one_ended()

    def view(self) -> SequenceView:
        """The sequence as it stands."""
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


class Luggage:
    """What a request brought, in its owner's room: most of it goes with the end of its last sequence.

    Args:
        room: what is reserved.
        running: sequences that have not ended.
        ended_bytes: what stays until the request is released.
    """

    def __init__(self, room: Reservation, running: int, ended_bytes: int) -> None:
        self._room, self._running, self._ended_bytes = room, running, ended_bytes

    def one_ended(self) -> None:
        """One more sequence has ended."""
        self._running -= 1
        if not self._running:
            self._room.shrink(self._ended_bytes)

    def give_back(self) -> None:
        """The request is gone."""
        self._room.give_back()
