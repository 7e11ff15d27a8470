"""Requests and their sequences: what happened to them, what they brought, and who is there for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_engine.config import Lease
from headrace_engine.engine.leases import DEFAULT_LEASE, Leases
from headrace_engine.engine.prompt_log import PromptLog
from headrace_engine.engine.result_log import ResultLog
from headrace_engine.engine.result_room import Reservation
from headrace_engine.engine.statistics import SequenceTimes
from headrace_engine.engine.stopping import Decoder, Spent
from headrace_engine.errors import HeadraceError, NotFound
from headrace_engine.request_types import AcceptedRequest, RequestView
from headrace_engine.result_types import EndRecord, FinishReason, RequestStat, SequenceView

if TYPE_CHECKING:
    from headrace_engine.engine.candidates import Contest
    from headrace_engine.engine.model import Model


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


class Request:
    """A request that was accepted, with its sequences.

    Args:
        serial: a number that orders requests by arrival.
        leases: watch over it while nobody is there.
        contest: chooses its sequences among candidates, which are computed instead; None: they are themselves.

    Attributes:
        readers: who is there for it: those that arrived and have not left.
        left: when the last of them left, at first when it was accepted.
        released: it is gone; what its readers still hold is theirs alone.
    """

    def __init__(
        self,
        owner: str,
        serial: int,
        model: Model,
        accepted: AcceptedRequest,
        sequences: list[Sequence],
        leases: Leases,
        contest: Contest | None = None,
    ) -> None:
        self.owner = owner
        self.serial = serial
        self.model = model
        self.accepted = accepted
        self.sequences = sequences
        self.readers = 0
        self.left = leases.clock()
        self.released = False
        self._leases = leases
        self._contest = contest

    @property
    def _undecided(self) -> list[Sequence]:
        """Candidates for its sequences, until they have been chosen."""
        return [] if self._contest is None else list(self._contest.candidates)

    @property
    def prompt(self) -> PromptLog | None:
        """What is told of its prompt; None: it did not ask."""
        return self.sequences[0].prompt

    @property
    def ended(self) -> bool:
        """All sequences have ended."""
        return all(sequence.log.end is not None for sequence in self.sequences)

    @property
    def place(self) -> tuple[int, int]:
        """Its place in lists: by arrival in nanoseconds, a hand-over by that of its first start; then by number.

        Whoever joins the lists of several engines sees the arrivals alone, so nothing else may come first.
        """
        times = self.sequences[0].times
        arrival = times.arrival if times.kept.arrival_time is None else times.kept.arrival_time
        return round(arrival * 1e9), self.serial

    @property
    def lease(self) -> Lease:
        """Its lease, with both parts."""
        config = self.accepted.effective_config
        return (config and config.lease) or DEFAULT_LEASE

    @property
    def deadline(self) -> float | None:
        """When it is ended, whatever it has generated by then; None: it may take its time."""
        config = self.accepted.effective_config
        if config is None or config.deadline is None:
            return None
        return self.sequences[0].times.arrival + config.deadline

    @property
    def lease_expires(self) -> float | None:
        """When its lease runs out if nobody comes. None: somebody is there, or it is gone."""
        if self.readers or self.released:
            return None
        if not self.ended:
            return self.left + (self.lease.running or 0.0)
        finished = max(sequence.times.finished or 0.0 for sequence in self.sequences)
        return max(self.left, finished) + (self.lease.ended or 0.0)

    def next_look(self, now: float) -> float | None:
        """Before this its lease cannot run out, whatever becomes of it: it may end at once. None: as lease_expires."""
        expires = self.lease_expires
        if expires is None or self.ended:
            return expires
        return min(expires, now + (self.lease.ended or 0.0))

    def arrive(self) -> None:
        """Somebody is there for it, until `leave`. Everyone who arrives leaves once, after its release too."""
        self.readers += 1

    def leave(self) -> None:
        """One of those who arrived is gone. With the last one, the lease begins to run."""
        self.readers -= 1
        if not self.readers:
            self.left = self._leases.clock()
            self._leases.watch(self)

    def end(self, reason: FinishReason) -> None:
        """End the sequences that may still run; their end records are there afterwards."""
        for sequence in self._undecided or self.sequences:
            self.model.end(sequence, reason)

    def sequence(self, index: int) -> Sequence:
        """A sequence by its number.

        Raises:
            NotFound: the request has no such sequence.
        """
        if not 0 <= index < len(self.sequences):
            raise NotFound(f"the request has {len(self.sequences)} sequence(s), none with index {index}")
        return self.sequences[index]

    def view(self, *, with_config: bool) -> RequestView:
        """The request as it stands; without its sequences, until they have been chosen among candidates."""
        accepted = self.accepted if with_config else replace(self.accepted, effective_config=None)
        sequences = () if self._undecided else tuple(sequence.view() for sequence in self.sequences)
        return RequestView(accepted, sequences, self.readers, self.lease_expires)

    async def wait_end(self) -> None:
        """Wait until all sequences have ended.

        Raises:
            NotFound: the request was released meanwhile.
        """
        for sequence in self.sequences:
            await sequence.log.wait_end()
