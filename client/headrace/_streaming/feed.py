"""Blocking reads of one sequence: its reader, guarded by a lock, and the notification of changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._base.deadline import Deadline
from headrace._base.retry import Clock
from headrace._streaming.reader import SequenceReader
from headrace._streaming.recovery import Recovery, as_loss
from headrace.errors import HeadraceError, NotFoundError

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class News(Protocol):
    """Guards a reader, and wakes those who wait for it to change. A `threading.Condition` is one."""

    def __enter__(self) -> Any:
        """Acquire the reader."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        """Release the reader."""

    def notify_all(self) -> None:
        """Wake all waiting reads."""


class BaseFeed:
    """A sequence reader between the stream that fills it and the queue that reads it, without blocking reads.

    The feed owns the reader: from its construction on, the reader is touched only while `news` is held.

    Args:
        reader: the sequence reader.
        news: guards the reader, and is notified whenever it changes.
        handle: handle of the request.
        index: index of the sequence.
        request_id: id of the request, for errors.

    Attributes:
        moved: called, with the lock held, after the reader was read or needs no more results. The stream that fills
            the reader sets it.
        adrift: called, with the lock held, while the reader's sequence is adrift. Who hands it over sets it.
        current: handle of the request where it runs now; `handle` is the one that its caller knows.
    """

    def __init__(self, reader: SequenceReader, news: News, *, handle: str, index: int, request_id: str) -> None:
        self.reader = reader
        self.handle = handle
        self.index = index
        self.request_id = request_id
        self.current = handle
        self.moved: Callable[[], None] = _nothing
        self.adrift: Callable[[], None] = _nothing
        self._news = news

    # A read calls `_begin`, waits while `_unanswered`, and calls `take`.

    def _begin(self) -> None:
        if self.reader.end is not None:
            # A read opens the window for the rest of an ended sequence.
            self._moved()

    def _unanswered(self, deadline: Deadline) -> bool:
        """Return whether to keep waiting; the rest of an ended sequence is fetched regardless of the deadline."""
        return not self.reader.ready and (self.reader.fetching or not deadline.passed)

    def _patience(self, deadline: Deadline) -> float | None:
        return None if self.reader.fetching else deadline.left()

    def take(self) -> types.GeneratedElements | None:
        """Return all that is unread and has arrived; None if there is nothing. Raises as `ReadableSequence.take`."""
        try:
            return self.reader.take()
        finally:
            # What one read takes gives the others nothing to read, so none is woken.
            self.moved()
            self._let_go()

    def query(self, question: Callable[[SequenceReader], Answer]) -> Answer:
        """Return the result of a function of the reader, called with the lock held."""
        with self._news:
            return question(self.reader)

    @property
    def over(self) -> bool:
        """True if no more results are needed, or all were read."""
        return self.query(lambda reader: reader.over or reader.settled)

    def apply(self, event: Callable[..., None], *facts: Any) -> None:
        """Call a method of the reader and wake waiting reads. Raises what the method raises."""
        with self._news:
            try:
                event(self.reader, *facts)
            finally:
                self._moved()

    def observe(self, info: request_pb2.SequenceInfo) -> None:
        """Update the reader with the state that a call returned."""
        try:
            self.apply(SequenceReader.observe, info)
        except HeadraceError as damage:
            self.fail(damage)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Surround a status poll outside the stream; only an error that is final reaches the reader."""
        try:
            yield
        except NotFoundError as error:
            self.fail(error)
        except HeadraceError as error:
            # The stream meets the same error, and retries if that makes sense.
            logger.debug("could not poll a waiting sequence: %s", error)

    def broken(self, error: HeadraceError, recovery: Recovery) -> float:
        """Return the seconds until the reader's own stream, which broke, is opened again; fail the reader if never."""
        error = as_loss(error, self.reader)
        delay = recovery.delay(error)
        if delay is None:
            self.fail(error)
        elif recovery.too_long:
            self.apply(SequenceReader.interrupt, error)
        return delay or 0.0

    @property
    def window_closed(self) -> bool:
        """True if results must be read before more are fetched; the lock is held."""
        return not self.reader.window_open and self.reader.unfilled

    def fail(self, error: HeadraceError) -> None:
        """End the reader with an error, once what has arrived is read."""
        self.apply(SequenceReader.fail, error)

    def release(self) -> None:
        """Mark the request as released and wake waiting reads."""
        self.apply(SequenceReader.release)

    def stop(self) -> None:
        """End the reader, since no stream will be opened any more, and wake waiting reads."""
        self.apply(SequenceReader.close)

    def abandon(self) -> None:
        """Give up reading but stay attached until the sequence ends, so that its lease does not expire."""
        self.apply(SequenceReader.abandon)

    def touched(self) -> None:
        """Wake waiting reads after a change of the reader; the lock is held."""
        self._let_go()
        self._news.notify_all()

    def _let_go(self) -> None:
        """Let the stream go that filled the reader, once it is settled or adrift."""
        if self.reader.settled:
            # The stream refers to the feed: drop the cycle, which would keep the client alive.
            self.moved = self.adrift = _nothing
        elif self.reader.adrift:
            # The stream of the lost engine lets go here; whoever fills the reader next sets it again.
            self.moved = _nothing
            self.adrift()

    def _moved(self) -> None:
        self.moved()
        self.touched()


class Feed(BaseFeed):
    """A sequence reader that one thread fills and others read.

    Args:
        reader: the sequence reader.
        lock: guards the reader; all feeds of a session share it.
        clock: source of time.
        handle: handle of the request.
        index: index of the sequence.
        request_id: id of the request, for errors.

    Attributes:
        changed: notified whenever the reader changes; its lock is `lock`.
    """

    def __init__(
        self, reader: SequenceReader, lock: threading.RLock, clock: Clock, *, handle: str, index: int, request_id: str
    ) -> None:
        self.changed = threading.Condition(lock)
        super().__init__(reader, self.changed, handle=handle, index=index, request_id=request_id)
        self._lock = lock
        self._clock = clock

    def read(self, seconds: float | None) -> types.GeneratedElements | None:
        """Return all that is unread, waiting at most `seconds` for it; None: without limit.

        The rest of a sequence that has ended is fetched regardless of the limit.
        """
        with self._lock:
            if self.reader.flows:
                return self.take()
            with self.reader.reading():
                self._begin()
                if not self.reader.ready:
                    self._wait(Deadline(self._clock, seconds))
                return self.take()

    def _wait(self, deadline: Deadline) -> None:
        while self._unanswered(deadline):
            self._clock.wait(self.changed, self._patience(deadline))


def _nothing() -> None:
    pass
