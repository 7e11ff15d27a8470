"""One sequence on its way to one queue: its reader, and the waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace import types
from headrace.deadline import Deadline
from headrace.errors import HeadraceError
from headrace.reader import SequenceReader
from headrace.retry import Clock
from headrace.v1 import request_pb2

Answer = TypeVar("Answer")


class Feed:
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
        moved: called, with the lock held, after the reader was read or wants no more.
    """

    def __init__(
        self, reader: SequenceReader, lock: threading.RLock, clock: Clock, *, handle: str, index: int, request_id: str
    ) -> None:
        self.reader = reader
        self.handle = handle
        self.index = index
        self.request_id = request_id
        self.changed = threading.Condition(lock)
        self.moved: Callable[[], None] = _nothing
        self._clock = clock

    def read(self, seconds: float | None) -> types.GeneratedElements | None:
        """All that is unread; waits for it at most so long, None: without a limit.

        What an ended sequence still has is fetched whatever the limit is.
        """
        reader = self.reader
        with self.changed, reader.reading():
            deadline = Deadline(self._clock, seconds)
            # Reading opens the window for the rest of an ended sequence.
            self._moved()
            while not reader.ready and (reader.fetching or not deadline.passed):
                self._clock.wait(self.changed, None if reader.fetching else deadline.left())
            try:
                return reader.take()
            finally:
                self._moved()

    def ask(self, question: Callable[[SequenceReader], Answer]) -> Answer:
        """The answer of the reader to a question."""
        with self.changed:
            return question(self.reader)

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted, or all was read."""
        return self.ask(lambda reader: reader.over or reader.settled)

    def tell(self, news: Callable[..., None], *facts: Any) -> None:
        """Passes news on to the reader and to whoever waits. Raises what the reader raises."""
        with self.changed:
            try:
                news(self.reader, *facts)
            finally:
                self._moved()

    def observe(self, info: request_pb2.SequenceInfo) -> None:
        """Passes on what a call told about the sequence."""
        try:
            self.tell(SequenceReader.observe, info)
        except HeadraceError as damage:
            self.tell(SequenceReader.fail, damage)

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
        self.changed.notify_all()

    def _moved(self) -> None:
        self.moved()
        self.touched()


def _nothing() -> None:
    pass
