"""A thread that fills one reader from a stream of its own; for servers and transports without sessions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1 import request_pb2
from headrace_proto.wire.transport import CallError, MessageStream

from headrace._base.deadline import Deadline
from headrace._base.retry import Clock
from headrace._streaming.feed import Feed
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery
from headrace._transport.transport import broke_off
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError, InternalServerError

POLL_INTERVAL = 1.0
"""Seconds between two polls of a sequence whose window is closed."""

logger = logging.getLogger(__name__)


class Pump:
    """Opens the stream, and opens it again when it breaks. The thread ends with the sequence.

    The thread owns the stream: other threads do not read it, but cancel it when the reader needs no more results.

    Args:
        feed: feed of the reader to fill.
        recovery: decides when to open the stream again.
        clock: source of time.
        open_stream: opens a stream at a position.
        poll: fetches the state of the sequence; called while the reader's window is closed.
    """

    def __init__(
        self,
        feed: Feed,
        recovery: Recovery,
        clock: Clock,
        *,
        open_stream: Callable[[int], MessageStream],
        poll: Callable[[], request_pb2.SequenceInfo | None],
    ) -> None:
        self._feed = feed
        self._reader = feed.reader
        self._handle = feed.current
        self._changed = feed.changed
        self._recovery = recovery
        self._clock = clock
        self._open_stream = open_stream
        self._poll = poll
        self._stream: MessageStream | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-stream", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        with self._changed:
            self._feed.moved = self._moved
        self._thread.start()

    @property
    def _needed(self) -> bool:
        """True if the stream should deliver more; not once the request has moved, as another pump follows it there."""
        return self._reader.unfilled and self._feed.current == self._handle

    def _moved(self) -> None:
        self._changed.notify_all()  # What was read may open the window.
        if self._stream is not None and not self._needed:
            self._stream.cancel()

    def _run(self) -> None:
        try:
            while self._wait_for_window():
                self._attempt()
        except BaseException as bug:
            if not is_fault(bug):
                raise
            # Blocked reads must get the error: if the thread just died, they would wait for ever.
            logger.exception("reading results failed")
            self._feed.fail(InternalServerError(f"reading results failed: {bug!r}"))

    def _attempt(self) -> None:
        try:
            self._read_stream()
        except CallError as failure:
            feed = self._feed
            self._recover(error_from_status(failure.status, request_id=feed.request_id, handle=feed.handle))
        except HeadraceError as damage:
            self._feed.fail(damage)

    def _read_stream(self) -> None:
        stream = self._open()
        try:
            for response in stream:
                self._recovery.progressed()
                self._feed.apply(SequenceReader.feed, response)
                if not self._wait_for_window():
                    return
        finally:
            # Also after a damaged message: the server must not send on, to nobody.
            stream.cancel()
        raise broke_off("the result stream")

    def _open(self) -> MessageStream:
        position = self._feed.query(lambda reader: reader.position)
        stream = self._open_stream(position)
        with self._changed:
            self._stream = stream
            # If the reader was closed before this point, there was no stream to cancel yet.
            self._moved()
        return stream

    def _recover(self, error: HeadraceError) -> None:
        deadline = Deadline(self._clock, self._feed.broken(error, self._recovery))
        with self._changed:
            while self._needed and not deadline.passed:
                self._clock.wait(self._changed, deadline.left())

    def _wait_for_window(self) -> bool:
        """Wait while the window is closed; return False if no more results are needed."""
        feed = self._feed
        while True:
            with self._changed:
                if feed.window_closed:
                    self._clock.wait(self._changed, POLL_INTERVAL)
                if not feed.window_closed:
                    return self._needed
            # Status and length of an unread queue are kept current too.
            with feed.polling():
                if (info := self._poll()) is not None:
                    feed.observe(info)
