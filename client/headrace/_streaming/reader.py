"""The state of reading one sequence, without I/O: what has arrived, what was read, and how it ended."""

from __future__ import annotations

from headrace_proto.v1 import request_pb2, request_service_pb2

from headrace import types
from headrace._streaming.delivered import Delivered
from headrace._streaming.reads import ReadableSequence
from headrace._values.convert import error_of, status_of
from headrace._values.details import details_of
from headrace.errors import EngineLostError, HeadraceError, RequestReleasedError

_ENDS_OF_ENGINES = frozenset({request_pb2.FINISH_REASON_DRAINED, request_pb2.FINISH_REASON_ENGINE_LOST})


class SequenceReader(ReadableSequence):
    """Joins the messages of streams into one sequence, exactly once and in order, and keeps what was not read.

    `feed`, or `begin`, `append` and `finish`, take messages; `observe`, `fail`, `interrupt`, `release`, `close` and
    `abandon` record other events; the rest are queries. It is not thread-safe: its feed guards it.

    Args:
        position: position of the first token to read.
        request_id: id of the request, for errors.
        delivered: where to keep what another engine needs to continue the sequence; None: it is not handed over.
    """

    def __init__(self, position: int = 0, request_id: str = "", delivered: Delivered | None = None) -> None:
        super().__init__(position, request_id, delivered)
        self._produced = position
        self._status: int = request_pb2.GENERATE_STATUS_INIT
        self._polled = False

    # Events.

    def feed(self, response: request_service_pb2.GeneratedElementsResponse) -> None:
        """Apply a message of a stream.

        Raises:
            InternalServerError: it does not continue what has arrived: a gap, a repetition, or another checksum.
        """
        self._interruption = None
        if response.HasField("elements"):
            new = response.elements
            ids, details = list(new.token_ids), details_of(new)
            self.append(new.position, ids, new.text, new.checksum_after, details, new.checksum_before)
            if new.HasField("prefix"):
                self.prefix = new.prefix
        if response.HasField("end"):
            self.finish(response.end)
        else:
            self._advance(response.status)

    def begin(self, position: int, checksum: int) -> None:
        """As `Arrived.begin`."""
        self._interruption = None
        super().begin(position, checksum)

    def finish(self, end: request_pb2.EndRecord) -> None:
        """Apply the end record; ignore a second one. Raises as `feed`.

        The end that a draining engine gives a sequence which can be handed over is not that of the sequence.
        """
        if self.end is not None:
            return
        if self._delivered is not None and end.finish_reason in _ENDS_OF_ENGINES:
            self._delivered.drain(end)
            return
        super().finish(end)
        self._status = end.status
        self._produced = end.position
        if end.status == request_pb2.GENERATE_STATUS_INTERNAL_ERROR:
            self._error = error_of(end, self._request_id)

    def observe(self, info: request_pb2.SequenceInfo) -> None:
        """Apply the state of the sequence that a call returned; an outdated one changes nothing.

        Raises:
            InternalServerError: it contradicts what has arrived.
        """
        self._produced = max(self._produced, info.generated_length)
        if info.HasField("prefix"):
            self.prefix = info.prefix
        if self._delivered is not None and info.HasField("stat"):
            self._delivered.learn(info.stat)
        if info.HasField("end"):
            self.finish(info.end)
        else:
            self._advance(info.status)

    def fail(self, error: HeadraceError) -> None:
        """End the sequence with an error, which reads raise once everything that has arrived is read.

        A sequence that can be handed over does not end with the loss of its engine: it is adrift.
        """
        if isinstance(error, RequestReleasedError):
            self.release()
        if self.over:
            return
        if self._delivered is not None and isinstance(error, EngineLostError):
            self._delivered.lost = error
            return
        reason = request_pb2.FINISH_REASON_ERROR
        if isinstance(error, EngineLostError):
            reason = request_pb2.FINISH_REASON_ENGINE_LOST
        self._error = error
        self.cut(reason)
        self._status = request_pb2.GENERATE_STATUS_INTERNAL_ERROR

    def land(self) -> None:
        """Continue at `position`, since another engine has taken over; forget the end of an unfinished sequence."""
        self._interruption = None
        if self._delivered is not None:
            self._delivered.lost = self._delivered.drained = None
        if self.end is not None:
            self.reopen()
            self._error = None
            self._status, self._produced = request_pb2.GENERATE_STATUS_GENERATING, self.position

    def strand(self, error: HeadraceError) -> None:
        """End the sequence, which no other engine continues: as its engine ended it, if all of that arrived."""
        drained = self._delivered.drained if self._delivered is not None else None
        # Not movable any more, so what follows ends it for good.
        self._delivered = None
        if drained is not None and drained.position == self.position:
            self.finish(drained)
        else:
            self.fail(error)

    # Queries of the stream that fills the reader.

    @property
    def adrift(self) -> bool:
        """True if the engine is lost, or drained and read to its end, and another one has to continue the sequence."""
        delivered = self._delivered
        if delivered is None or (delivered.lost is None and delivered.drained is None):  # Asked with every token.
            return False
        return delivered.adrift(self.position) and not self.over

    @property
    def loss(self) -> HeadraceError | None:
        """The loss of the engine; None while it is not lost."""
        return None if self._delivered is None else self._delivered.lost

    def resumed(self, index: int) -> request_pb2.ResumedSequence:
        """Return what another engine is sent of the sequence, which can be handed over; `index` is its index."""
        delivered = self._delivered or Delivered()
        return delivered.resumed(index, ended=self.end is not None)

    @property
    def drained(self) -> bool:
        """True if its engine has ended the sequence because it shuts down."""
        return self._delivered is not None and self._delivered.drained is not None

    @property
    def failed(self) -> bool:
        """True if its engine has ended the sequence because it cannot compute the model any more."""
        drained = None if self._delivered is None else self._delivered.drained
        return drained is not None and drained.finish_reason == request_pb2.FINISH_REASON_ENGINE_LOST

    @property
    def movable(self) -> bool:
        """True if the sequence can be handed over to another engine."""
        return self._delivered is not None

    @property
    def unfilled(self) -> bool:
        """True if a stream should fill the reader: more is needed, and there is an engine to get it from."""
        return not (self.over or self.adrift)

    def status(self) -> types.GenerateStatus:
        """Return the status, in order with the tokens: see `ResultQueue.GenerateStatus`."""
        first, self._polled = not self._polled, True
        if self.end is not None and not self._released and (self._reads.any or first) and self.unread:
            return types.GenerateStatus.Generating
        return status_of(self._status)

    @property
    def generated_length(self) -> int:
        """Number of generated tokens, as far as is known."""
        return max(self._produced, self.position)

    def _advance(self, status: int) -> None:
        # The numbers of statuses increase over time; terminal ones come with the end record only.
        if self.end is None and self._status < status < request_pb2.GENERATE_STATUS_FINISHED:
            self._status = status
            if self._delivered is not None:
                self._delivered.began()
