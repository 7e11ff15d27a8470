"""One sequence on its way to one queue: its reader, and the waiting for it."""

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
from headrace._streaming.recovery import Recovery
from headrace.errors import HeadraceError, NotFoundError

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class News(Protocol):
    """Tells whoever waits that something changed. Entered while that is touched which may change."""

    def __enter__(self) -> Any:
        """From now on nobody else touches it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        """Others may."""

    def notify_all(self) -> None:
        """Wakes all who wait."""


class BaseFeed:
    """A reader that is filled from one side and read from another, however the reading waits.

    Args:
        reader: what has arrived; from now on touched under the lock alone.
        news: guards the reader, and is notified whenever it changed.
        handle: the request.
        index: the sequence.
        request_id: the request, for errors.

    Attributes:
        moved: called, with the lock held, after the reader was read or wants no more.
    """

    def __init__(self, reader: SequenceReader, news: News, *, handle: str, index: int, request_id: str) -> None:
        self.reader = reader
        self.handle = handle
        self.index = index
        self.request_id = request_id
        self.moved: Callable[[], None] = _nothing
        self._news = news

    # One read: `_begin`, waiting for as long as `_unanswered`, `_take`.

    def _begin(self) -> None:
        if self.reader.end is not None:
            # Reading opens the window for the rest of an ended sequence.
            self._moved()

    def _unanswered(self, deadline: Deadline) -> bool:
        """Whether to wait on: what an ended sequence still has is fetched whatever the limit is."""
        return not self.reader.ready and (self.reader.fetching or not deadline.passed)

    def _patience(self, deadline: Deadline) -> float | None:
        return None if self.reader.fetching else deadline.left()

    def _take(self) -> types.GeneratedElements | None:
        try:
            return self.reader.take()
        finally:
            self._moved()

    def ask(self, question: Callable[[SequenceReader], Answer]) -> Answer:
        """The answer of the reader to a question."""
        with self._news:
            return question(self.reader)

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted, or all was read."""
        return self.ask(lambda reader: reader.over or reader.settled)

    def tell(self, news: Callable[..., None], *facts: Any) -> None:
        """Passes news on to the reader and to whoever waits. Raises what the reader raises."""
        with self._news:
            try:
                news(self.reader, *facts)
            finally:
                self._moved()

    def observe(self, info: request_pb2.SequenceInfo) -> None:
        """Passes on what a call told about the sequence."""
        try:
            self.tell(SequenceReader.observe, info)
        except HeadraceError as damage:
            self.fail(damage)

    @contextmanager
    def glancing(self) -> Iterator[None]:
        """Surrounds a look at the sequence beside its stream; a failed one is only told where it is final."""
        try:
            yield
        except NotFoundError as error:
            self.fail(error)
        except HeadraceError as error:
            # Whatever it is, the stream will meet it too, and tries again where that makes sense.
            logger.debug("could not look at a waiting sequence: %s", error)

    def broken(self, error: HeadraceError, recovery: Recovery) -> float:
        """Its own stream broke. Seconds until the next one; a final failure is told to the reader."""
        delay = recovery.delay(error)
        if delay is None:
            self.fail(error)
        elif recovery.too_long:
            self.tell(SequenceReader.interrupt, error)
        return delay or 0.0

    @property
    def window_closed(self) -> bool:
        """Whether nothing may be fetched before something is read; with the lock held."""
        return not self.reader.has_room and not self.reader.over

    def fail(self, error: HeadraceError) -> None:
        """Nothing more can come."""
        self.tell(SequenceReader.fail, error)

    def release(self) -> None:
        """The request was released: wakes whoever reads."""
        self.tell(SequenceReader.release)

    def stop(self) -> None:
        """Nothing more is read: wakes whoever reads."""
        self.tell(SequenceReader.close)

    def abandon(self) -> None:
        """Nobody will read, but the request is to stay attached until its end."""
        self.tell(SequenceReader.abandon)

    def touched(self) -> None:
        """The reader changed; with the lock held."""
        if self.reader.settled:
            # What filled it holds it too; neither is to keep the other, and the client with them.
            self.moved = _nothing
        self._news.notify_all()

    def _moved(self) -> None:
        self.moved()
        self.touched()


class Feed(BaseFeed):
    """A reader that one thread fills and others read.

    Args:
        reader: what has arrived; from now on touched under the lock alone.
        lock: guards the reader, and whatever else goes on with it.
        clock: time.
        handle: the request.
        index: the sequence.
        request_id: the request, for errors.

    Attributes:
        changed: notified whenever the reader changed; its lock is the one given.
    """

    def __init__(
        self, reader: SequenceReader, lock: threading.RLock, clock: Clock, *, handle: str, index: int, request_id: str
    ) -> None:
        self.changed = threading.Condition(lock)
        super().__init__(reader, self.changed, handle=handle, index=index, request_id=request_id)
        self._clock = clock

    def read(self, seconds: float | None) -> types.GeneratedElements | None:
        """All that is unread; waits for it at most so long, None: without a limit.

        What an ended sequence still has is fetched whatever the limit is.
        """
        with self.changed, self.reader.reading():
            self._begin()
            if not self.reader.ready:
                self._wait(Deadline(self._clock, seconds))
            return self._take()

    def _wait(self, deadline: Deadline) -> None:
        while self._unanswered(deadline):
            self._clock.wait(self.changed, self._patience(deadline))


def _nothing() -> None:
    pass
