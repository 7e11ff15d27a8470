"""The state of reading one sequence, without I/O: what has arrived, what was read, and how it ended."""

from __future__ import annotations

from headrace_proto.v1 import request_pb2, request_service_pb2

from headrace import types
from headrace._streaming.delivered import Delivered
from headrace._streaming.reads import Reads
from headrace._values.convert import error_of, merge_elements, status_of
from headrace._values.integrity import checksum, columns_fit
from headrace._values.parts import Part, part_of
from headrace.errors import EngineLostError, HeadraceError, InternalServerError, RequestReleasedError, UnavailableError

_ENDS_OF_ENGINES = frozenset({request_pb2.FINISH_REASON_DRAINED, request_pb2.FINISH_REASON_ENGINE_LOST})

WINDOW = 4096
"""Maximum number of unread tokens; more are fetched only once these are read."""


class SequenceReader:
    """Joins the messages of streams into one sequence, exactly once and in order, and keeps what was not read.

    `feed`, or `begin`, `append` and `finish`, take messages; `observe`, `fail`, `interrupt`, `release`, `close` and
    `abandon` record other events; the rest are queries. It is not thread-safe: its feed guards it.

    Args:
        position: position of the first token to read.
        request_id: id of the request, for errors.
        delivered: where to keep what another engine needs to continue the sequence; None: it is not handed over.
    """

    def __init__(self, position: int = 0, request_id: str = "", delivered: Delivered | None = None) -> None:
        self._request_id = request_id
        self._delivered = delivered
        self._drained: request_pb2.EndRecord | None = None
        self._lost: HeadraceError | None = None
        self._parts: list[Part] = []
        self._taken = position
        self._arrived = position
        # Only a reader that begins at 0 knows the checksum before its first token.
        self._checksum: int | None = 0 if position == 0 else None
        self._produced = position
        self._status: int = request_pb2.GENERATE_STATUS_INIT
        self._prefix: request_pb2.PrefixReuse | None = None
        self._end: request_pb2.EndRecord | None = None
        self._tail = ""
        self._error: HeadraceError | None = None
        self._interruption: HeadraceError | None = None
        self._released = False
        self._closed = False
        self._abandoned = False
        self._polled = False
        self._reads = Reads()

    # Events.

    def feed(self, response: request_service_pb2.GeneratedElementsResponse) -> None:
        """Apply a message of a stream.

        Raises:
            InternalServerError: it does not continue what has arrived: a gap, a repetition, or another checksum.
        """
        self._interruption = None
        if response.HasField("elements"):
            self.append(part_of(response.elements))
            if response.elements.HasField("prefix"):
                self._prefix = response.elements.prefix
        if response.HasField("end"):
            self.finish(response.end)
        else:
            self._advance(response.status)

    def begin(self, position: int, checksum: int) -> None:
        """Check that a stream which resumes at `position` continues this sequence.

        Args:
            position: position of the stream's first token.
            checksum: CRC-32 of all ids before it.

        Raises:
            InternalServerError: other tokens have arrived.
        """
        self._interruption = None
        if position != self._arrived or self._checksum not in (None, checksum):
            raise self._fault(f"the stream resumed at token {position}, which does not follow the {self._arrived} read")
        self._checksum = checksum

    def append(self, part: Part) -> None:
        """Append tokens. Raises as `feed`."""
        self._check(part)
        self._parts.append(part)
        self._arrived += len(part.ids)
        self._checksum = part.after
        if self._delivered is not None:
            self._delivered.add(part.ids)

    def finish(self, end: request_pb2.EndRecord) -> None:
        """Apply the end record; ignore a second one. Raises as `feed`.

        The end that a draining engine gives a sequence which can be handed over is not that of the sequence.
        """
        if self._end is not None:
            return
        if self._delivered is not None and end.finish_reason in _ENDS_OF_ENGINES:
            self._drained = end
            self._delivered.learn(end.stat)
            return
        self._check_end(end, self._arrived, self._checksum)
        self._end = end
        self._tail = end.text
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
            self._prefix = info.prefix
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
            self._lost = error
            return
        reason = request_pb2.FINISH_REASON_ERROR
        if isinstance(error, EngineLostError):
            reason = request_pb2.FINISH_REASON_ENGINE_LOST
        self._error = error
        self._tail = ""
        self._end = request_pb2.EndRecord(
            status=request_pb2.GENERATE_STATUS_INTERNAL_ERROR, finish_reason=reason, position=self._arrived
        )
        self._status = self._end.status

    def land(self) -> None:
        """Continue at `position`, since another engine has taken over; forget the end of an unfinished sequence."""
        self._lost = self._drained = self._interruption = None
        if self._end is not None:
            self._end, self._tail, self._error = None, "", None
            self._status, self._produced = request_pb2.GENERATE_STATUS_GENERATING, self._arrived

    def strand(self, error: HeadraceError) -> None:
        """End the sequence, which no other engine continues: as its engine ended it, if all of that arrived."""
        drained, self._delivered, self._drained, self._lost = self._drained, None, None, None
        if drained is not None and drained.position == self._arrived:
            self.finish(drained)
        else:
            self.fail(error)

    def interrupt(self, error: HeadraceError) -> None:
        """Have the next read raise an error once, unless there is something to read; results may follow later."""
        self._interruption = error

    def release(self) -> None:
        """Have reads raise RequestReleasedError."""
        self._released = True

    def close(self) -> None:
        """Have reads raise UnavailableError once nothing is left: no stream will be opened any more."""
        self._closed = True

    def abandon(self) -> None:
        """Need nothing but the end record from now on, since there will be no more reads."""
        self._abandoned = True

    # Queries of the stream that fills the reader.

    @property
    def position(self) -> int:
        """Position of the next token to fetch."""
        return self._arrived

    @property
    def adrift(self) -> bool:
        """True if the engine is lost, or drained and read to its end, and another one has to continue the sequence."""
        if self.over:
            return False
        drained = self._drained is not None and self._arrived >= self._drained.position
        return drained or self._lost is not None

    @property
    def loss(self) -> HeadraceError | None:
        """The loss of the engine; None while it is not lost."""
        return self._lost

    def resumed(self, index: int) -> request_pb2.ResumedSequence:
        """Return what another engine is told of the sequence, which can be handed over; `index` is its index."""
        delivered = self._delivered or Delivered()
        return delivered.resumed(index, ended=self._end is not None)

    @property
    def drained(self) -> bool:
        """True if its engine has ended the sequence because it shuts down."""
        return self._drained is not None

    @property
    def movable(self) -> bool:
        """True if the sequence can be handed over to another engine."""
        return self._delivered is not None

    @property
    def unfilled(self) -> bool:
        """True if a stream should fill the reader: more is needed, and there is an engine to get it from."""
        return not (self.over or self.adrift)

    @property
    def complete(self) -> bool:
        """True if all of the sequence has arrived."""
        return self._end is not None and self._arrived == self._end.position

    @property
    def over(self) -> bool:
        """True if no more results are needed."""
        return self._gone or self.complete

    @property
    def settled(self) -> bool:
        """True if no more results are needed and all that arrived was read, so that the reader may detach."""
        if self._end is None:
            return self._released or self._closed
        return self._gone or (self.complete and not self.unread)

    @property
    def _gone(self) -> bool:
        return self._released or self._closed or (self._abandoned and self._end is not None)

    @property
    def running_checksum(self) -> int | None:
        """CRC-32 of all ids before `position`; None: not known yet."""
        return self._checksum

    @property
    def window_start(self) -> int:
        """Start of the window: the first unread position. While an ended sequence is being read, the next to arrive."""
        return self._arrived if self._reads.running and self._end is not None else self._taken

    @property
    def window_open(self) -> bool:
        """True if more should be fetched: fewer than WINDOW tokens have arrived since `window_start`."""
        return self._arrived - self.window_start < WINDOW

    # Queries of the queue.

    def reading(self) -> Reads:
        """Return the context manager that surrounds each read up to its `take`."""
        return self._reads

    @property
    def ready(self) -> bool:
        """True if a read need not wait before `take`."""
        return self.over or self._interruption is not None or (self._end is None and bool(self._parts))

    @property
    def fetching(self) -> bool:
        """True if the sequence has ended and part of it has yet to arrive."""
        return self._end is not None and not self.ready

    def take(self) -> types.GeneratedElements | None:
        """Return everything unread that has arrived as one element, and mark it as read; None if there is nothing.

        Raises:
            RequestReleasedError: the request was released.
            EngineLostError, InternalServerError: it ended with InternalError, and nothing is left to read.
            UnavailableError: no server could be reached for too long, or the client was closed.
            HeadraceError: the server rejected the stream for another reason.
        """
        if self._released:
            raise RequestReleasedError("the request was released: its results are gone", request_id=self._request_id)
        tail = self._tail if self.complete else ""
        if self._parts or tail:
            return self._take(tail)
        if self.complete:
            # An interruption does not matter any more: nothing was left to fetch.
            self._raise_error()
        elif self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            raise interruption
        elif self._closed:
            raise UnavailableError("the client was closed", reason="CLIENT_CLOSED", request_id=self._request_id)
        return None

    def status(self) -> types.GenerateStatus:
        """Return the status, in order with the tokens: see `ResultQueue.GenerateStatus`."""
        first, self._polled = not self._polled, True
        if self._end is not None and not self._released and (self._reads.any or first) and self.unread:
            return types.GenerateStatus.Generating
        return status_of(self._status)

    @property
    def unread(self) -> bool:
        """True if the sequence has ended and has unread tokens or text, whether they have arrived or not."""
        return self._end is not None and (self._taken < self._end.position or bool(self._tail))

    @property
    def generated_length(self) -> int:
        """Number of generated tokens, as far as is known."""
        return max(self._produced, self._arrived)

    @property
    def released(self) -> bool:
        """True if the request is known to be released."""
        return self._released

    @property
    def end(self) -> request_pb2.EndRecord | None:
        """The end record; None while the sequence runs."""
        return self._end

    def _check(self, part: Part) -> None:
        count = len(part.ids)
        if part.position != self._arrived:
            raise self._fault(f"expected token {self._arrived}, received token {part.position}")
        if self._checksum not in (None, part.before) or part.after != checksum(part.ids, part.before):
            raise self._fault(f"the checksum of tokens {part.position} to {part.position + count - 1} does not match")
        if part.details is not None and not columns_fit(part.details, count):
            raise self._fault(f"per-token lists do not have one entry for each of {count} ids")
        if self._end is not None:
            self._check_end(self._end, part.position + count, part.after)

    def _check_end(self, end: request_pb2.EndRecord, arrived: int, known: int | None) -> None:
        if arrived > end.position:
            raise self._fault(f"the sequence ends at {end.position}, but token {arrived - 1} arrived")
        if arrived == end.position and known not in (None, end.checksum):
            raise self._fault(f"the checksum of all {end.position} tokens does not match")

    def _advance(self, status: int) -> None:
        # The numbers of statuses increase over time; terminal ones come with the end record only.
        if self._end is None and self._status < status < request_pb2.GENERATE_STATUS_FINISHED:
            self._status = status
            if self._delivered is not None:
                self._delivered.began()

    def _take(self, tail: str) -> types.GeneratedElements:
        parts, position = self._parts, self._taken
        self._parts, self._taken = [], self._arrived
        if tail:
            self._tail = ""
        return merge_elements(parts, position, tail, self._prefix)

    def _raise_error(self) -> None:
        if self._error is not None:
            # Without this, the traceback would grow each time the error is raised.
            raise self._error.with_traceback(None)
        if self._end is None or self._end.status != request_pb2.GENERATE_STATUS_INTERNAL_ERROR:
            return
        if self._end.finish_reason == request_pb2.FINISH_REASON_ENGINE_LOST:
            raise EngineLostError("the engine that held the request is gone", request_id=self._request_id)
        raise InternalServerError("the engine failed without giving a reason", request_id=self._request_id)

    def _fault(self, what: str) -> InternalServerError:
        return InternalServerError(f"the results are damaged: {what}", request_id=self._request_id)
