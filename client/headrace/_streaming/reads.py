"""Reads of a sequence: what they return or raise, and when no more are to come."""

from __future__ import annotations

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._streaming.arrived import Arrived
from headrace._streaming.delivered import Delivered
from headrace.errors import EngineLostError, HeadraceError, InternalServerError, RequestReleasedError, UnavailableError

WINDOW = 4096
"""Maximum number of unread tokens; more are fetched only once these are read."""


class Reads:
    """A context manager for reads of a reader, several at once. All share one object, as there are very many reads.

    Attributes:
        running: number of reads in progress.
        any: True from the first read on.
    """

    def __init__(self) -> None:
        self.running = 0
        self.any = False

    def __enter__(self) -> None:
        self.any = True
        self.running += 1

    def __exit__(self, *failure: object) -> None:
        self.running -= 1


class ReadableSequence(Arrived):
    """A sequence that is read while it arrives. Arguments as those of `Arrived`."""

    def __init__(self, position: int, request_id: str, delivered: Delivered | None) -> None:
        super().__init__(position, request_id, delivered)
        self._error: HeadraceError | None = None
        self._interruption: HeadraceError | None = None
        self._released = False
        self._closed = False
        self._abandoned = False
        self._reads = Reads()

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

    @property
    def over(self) -> bool:
        """True if no more results are needed."""
        return self._gone or self.complete

    @property
    def settled(self) -> bool:
        """True if no more results are needed and all that arrived was read, so that the reader may detach."""
        if self.end is None:
            return self._released or self._closed
        return self._gone or (self.complete and not self.unread)

    @property
    def _gone(self) -> bool:
        return self._released or self._closed or (self._abandoned and self.end is not None)

    @property
    def released(self) -> bool:
        """True if the request is known to be released."""
        return self._released

    @property
    def window_start(self) -> int:
        """Start of the window: the first unread position. While an ended sequence is being read, the next to arrive."""
        return self.position if self._reads.running and self.end is not None else self.taken

    @property
    def window_open(self) -> bool:
        """True if more should be fetched: fewer than WINDOW tokens have arrived since `window_start`."""
        return self.position - self.window_start < WINDOW

    def reading(self) -> Reads:
        """Return the context manager that surrounds each read up to its `take`."""
        return self._reads

    @property
    def flows(self) -> bool:
        """True if the sequence runs and tokens are there, as for almost every read: it takes them, and that is all."""
        return self.end is None and bool(self._ids)

    @property
    def ready(self) -> bool:
        """True if a read need not wait before `take`."""
        return self.flows or self.over or self._interruption is not None

    @property
    def fetching(self) -> bool:
        """True if the sequence has ended and part of it has yet to arrive."""
        return self.end is not None and not self.ready

    def take(self) -> types.GeneratedElements | None:
        """Return everything unread that has arrived as one element, and mark it as read; None if there is nothing.

        Raises:
            RequestReleasedError: the request was released.
            EngineLostError, InternalServerError: it ended with InternalError, and nothing is left to read.
            UnavailableError: no server could be reached for too long, or the client was closed.
            HeadraceError: the server rejected the stream for another reason.
        """
        self._reads.any = True
        if self._released:
            raise RequestReleasedError("the request was released: its results are gone", request_id=self._request_id)
        if (element := self._take()) is not None:
            return element
        if self.complete:
            # An interruption does not matter any more: nothing was left to fetch.
            self._raise_error()
        elif self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            raise interruption
        elif self._closed:
            raise UnavailableError("the client was closed", reason="CLIENT_CLOSED", request_id=self._request_id)
        return None

    def _raise_error(self) -> None:
        if self._error is not None:
            # Without this, the traceback would grow each time the error is raised.
            raise self._error.with_traceback(None)
        if self.end is None or self.end.status != request_pb2.GENERATE_STATUS_INTERNAL_ERROR:
            return
        if self.end.finish_reason == request_pb2.FINISH_REASON_ENGINE_LOST:
            raise EngineLostError("the engine that held the request is gone", request_id=self._request_id)
        raise InternalServerError("the engine failed without giving a reason", request_id=self._request_id)
