"""Fills one reader from a stream of its own, in a thread of its own; for servers and transports without sessions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.deadline import Deadline
from headrace.errors import HeadraceError, InternalServerError, NotFoundError
from headrace.feed import Feed
from headrace.reader import SequenceReader
from headrace.recovery import Recovery
from headrace.transport import CallError, MessageStream
from headrace.v1 import request_pb2, status_pb2
from headrace.wire_errors import UNAVAILABLE, error_from_status

_LOOK_EVERY = 1.0  # seconds between two looks at a sequence whose window is closed

logger = logging.getLogger(__name__)


class Pump:
    """Opens the stream, and opens it again when it breaks. The thread ends with the sequence.

    Args:
        feed: what to fill.
        recovery: how to open the stream again.
        open_stream: opens a stream from a position.
        look: asks how the sequence stands; used while the reader's window is closed.
    """

    def __init__(
        self,
        feed: Feed,
        recovery: Recovery,
        *,
        open_stream: Callable[[int], MessageStream],
        look: Callable[[], request_pb2.SequenceInfo | None],
    ) -> None:
        self._feed = feed
        self._reader = feed.reader
        self._changed = feed.changed
        self._recovery = recovery
        self._clock = recovery.clock
        self._open_stream = open_stream
        self._look = look
        self._stream: MessageStream | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-stream", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        with self._changed:
            self._feed.moved = self._moved
        self._thread.start()

    def _moved(self) -> None:
        if self._reader.over and self._stream is not None:
            self._stream.cancel()

    def _run(self) -> None:
        try:
            while self._wait_for_room():
                self._attempt()
        except Exception as bug:
            # Whoever waits in Get() must hear of it; a thread that dies silently would leave it there for ever.
            logger.exception("reading results failed")
            self._fail(InternalServerError(f"reading results failed: {bug!r}."))

    def _attempt(self) -> None:
        try:
            self._read_stream()
        except CallError as failure:
            feed = self._feed
            self._recover(error_from_status(failure.status, request_id=feed.request_id, handle=feed.handle))
        except HeadraceError as damage:
            self._fail(damage)

    def _read_stream(self) -> None:
        stream = self._open()
        try:
            for response in stream:
                self._recovery.progressed()
                self._feed.tell(SequenceReader.feed, response)
                if not self._wait_for_room():
                    return
        finally:
            stream.cancel()
        raise CallError(status_pb2.Status(code=UNAVAILABLE, message="the results broke off before their end."))

    def _open(self) -> MessageStream:
        position = self._feed.ask(lambda reader: reader.position)
        stream = self._open_stream(position)
        with self._changed:
            self._stream = stream
            # Somebody may have finished meanwhile, and could not cancel what was not there yet.
            self._moved()
        return stream

    def _recover(self, error: HeadraceError) -> None:
        delay = self._recovery.delay(error)
        if delay is None:
            self._fail(error)
            return
        if self._recovery.too_long:
            self._feed.tell(SequenceReader.interrupt, error)
        deadline = Deadline(self._clock, delay)
        with self._changed:
            while not self._reader.over and not deadline.passed:
                self._clock.wait(self._changed, deadline.left())

    def _wait_for_room(self) -> bool:
        """Waits while the window is closed; False: nothing more is wanted."""
        while True:
            with self._changed:
                if self._window_closed:
                    self._clock.wait(self._changed, _LOOK_EVERY)
                if not self._window_closed:
                    return not self._reader.over
            self._look_at_it()

    @property
    def _window_closed(self) -> bool:
        return not self._reader.has_room and not self._reader.over

    def _look_at_it(self) -> None:
        """Learns status and length while tokens wait: a queue that nobody reads tells of its end all the same."""
        try:
            info = self._look()
        except NotFoundError as error:
            self._fail(error)
        except HeadraceError as error:
            # Whatever it is, the stream will meet it too, and tries again where that makes sense.
            logger.debug("could not look at a waiting sequence: %s", error)
        else:
            if info is not None:
                self._feed.observe(info)

    def _fail(self, error: HeadraceError) -> None:
        self._feed.tell(SequenceReader.fail, error)
