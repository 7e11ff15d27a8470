"""Feeds a reader from a stream, in a thread of its own, and opens the stream again when it breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace import types
from headrace.deadline import Deadline
from headrace.errors import HeadraceError, InternalServerError, NotFoundError
from headrace.reader import SequenceReader
from headrace.recovery import Recovery
from headrace.transport import CallError, MessageStream
from headrace.v1 import request_pb2, status_pb2
from headrace.wire_errors import UNAVAILABLE, error_from_status

_LOOK_EVERY = 1.0  # seconds between two looks at a sequence whose window is closed

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class Pump:
    """One sequence on its way to one queue.

    The thread ends with the sequence. Whoever reads waits on the same condition that the thread notifies.

    Args:
        reader: what to feed; from now on touched by the pump alone.
        recovery: how to open the stream again.
        open_stream: opens a stream from a position.
        look: asks how the sequence stands; used while the reader's window is closed.
        handle: the request.
        index: the sequence.
        request_id: the request, for errors.
    """

    def __init__(
        self,
        reader: SequenceReader,
        recovery: Recovery,
        *,
        open_stream: Callable[[int], MessageStream],
        look: Callable[[], request_pb2.SequenceInfo | None],
        handle: str,
        index: int,
        request_id: str,
    ) -> None:
        self._reader = reader
        self._recovery = recovery
        self._clock = recovery.clock
        self._open_stream = open_stream
        self._look = look
        self.handle = handle
        self.index = index
        self._request_id = request_id
        self._changed = threading.Condition()
        self._stream: MessageStream | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-reader", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    # The side of whoever reads.

    def read(self, seconds: float | None) -> types.GeneratedElements | None:
        """All that is unread; waits for it at most so long, None: without a limit.

        What an ended sequence still has is fetched whatever the limit is.
        """
        with self._changed, self._reader.reading():
            deadline = Deadline(self._clock, seconds)
            # Reading opens the window for the rest of an ended sequence.
            self._changed.notify_all()
            while not self._reader.ready and (self._reader.fetching or not deadline.passed):
                self._clock.wait(self._changed, None if self._reader.fetching else deadline.left())
            self._changed.notify_all()
            return self._reader.take()

    def ask(self, question: Callable[[SequenceReader], Answer]) -> Answer:
        """The answer of the reader to a question."""
        with self._changed:
            return question(self._reader)

    @property
    def over(self) -> bool:
        """Whether its thread has nothing more to do."""
        return self.ask(lambda reader: reader.over)

    def observe(self, info: request_pb2.SequenceInfo) -> None:
        """Passes on what a call told about the sequence."""
        try:
            self._tell(SequenceReader.observe, info)
        except HeadraceError as damage:
            self._tell(SequenceReader.fail, damage)

    def release(self) -> None:
        """The request was released: wakes whoever reads."""
        self._finish(SequenceReader.release)

    def stop(self) -> None:
        """Ends the thread: wakes whoever reads."""
        self._finish(SequenceReader.close)

    def _finish(self, verb: Callable[[SequenceReader], None]) -> None:
        self._tell(verb)
        with self._changed:
            stream = self._stream
        if stream is not None:
            stream.cancel()

    # The side of the stream.

    def _run(self) -> None:
        try:
            while self._wait_for_room():
                self._attempt()
        except Exception as bug:
            # Whoever waits in Get() must hear of it; a thread that dies silently would leave it there for ever.
            logger.exception("reading results failed")
            self._tell(SequenceReader.fail, InternalServerError(f"reading results failed: {bug!r}."))

    def _attempt(self) -> None:
        try:
            self._read_stream()
        except CallError as failure:
            self._recover(error_from_status(failure.status, request_id=self._request_id, handle=self.handle))
        except HeadraceError as damage:
            self._tell(SequenceReader.fail, damage)

    def _read_stream(self) -> None:
        stream = self._open()
        try:
            for response in stream:
                self._recovery.progressed()
                self._tell(SequenceReader.feed, response)
                if not self._wait_for_room():
                    return
        finally:
            stream.cancel()
        raise CallError(status_pb2.Status(code=UNAVAILABLE, message="the results broke off before their end."))

    def _open(self) -> MessageStream:
        position = self.ask(lambda reader: reader.position)
        stream = self._open_stream(position)
        with self._changed:
            self._stream = stream
            over = self._reader.over
        if over:
            # Somebody finished meanwhile and could not cancel what was not there yet.
            stream.cancel()
        return stream

    def _recover(self, error: HeadraceError) -> None:
        delay = self._recovery.delay(error)
        if delay is None:
            self._tell(SequenceReader.fail, error)
            return
        if self._recovery.too_long:
            self._tell(SequenceReader.interrupt, error)
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
            self._tell(SequenceReader.fail, error)
        except HeadraceError as error:
            # Whatever it is, the stream will meet it too, and tries again where that makes sense.
            logger.debug("could not look at a waiting sequence: %s", error)
        else:
            if info is not None:
                self.observe(info)

    def _tell(self, news: Callable[..., None], *facts: Any) -> None:
        with self._changed:
            try:
                news(self._reader, *facts)
            finally:
                self._changed.notify_all()
