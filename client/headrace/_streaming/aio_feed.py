"""Blocking reads of one sequence in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_proto.pure.faults import is_fault

from headrace import types
from headrace._base.aio_waiting import AsyncClock, HomeLoop, Signal
from headrace._base.deadline import Deadline
from headrace._streaming.feed import BaseFeed
from headrace._streaming.reader import SequenceReader


class AsyncFeed(BaseFeed):
    """A sequence reader that one task fills and others read.

    The event loop guards the reader: it is touched between two awaits only.

    Args:
        reader: the sequence reader.
        home: the client's event loop.
        clock: source of time.
        handle: handle of the request.
        index: index of the sequence.
        request_id: id of the request, for errors.

    Attributes:
        changed: notified whenever the reader changes.
    """

    def __init__(
        self, reader: SequenceReader, home: HomeLoop, clock: AsyncClock, *, handle: str, index: int, request_id: str
    ) -> None:
        self.changed = Signal()
        super().__init__(reader, self.changed, handle=handle, index=index, request_id=request_id)
        self._home = home
        self._clock = clock

    async def read(self, seconds: float | None) -> types.GeneratedElements | None:
        """Return all that is unread, waiting at most `seconds` for it; None: without limit.

        The rest of a sequence that has ended is fetched regardless of the limit. A cancelled read consumes nothing.
        """
        self._home.enter()
        if self.reader.flows:
            return self.take()
        with self.reader.reading():
            deadline = Deadline(self._clock, seconds)
            self._begin()
            if not self.reader.ready and seconds is not None:
                # Let results arrive, even if the caller polls without awaiting anything else.
                await asyncio.sleep(0)
            while self._unanswered(deadline):
                await self._clock.wait(self.changed, self._patience(deadline))
            return self.take()

    async def pass_on(self, take: Callable[[types.GeneratedElements], bool]) -> bool:
        """Give all that is unread to a function, now and whenever something arrives, as `AsyncResultQueue.pass_on`."""
        self._home.enter()
        passing = _Passing(self, take)
        with self.reader.reading(), self.changed.calling(passing.go_on):
            self._begin()
            passing.go_on()
            await passing.over
        if passing.error is not None:
            raise passing.error
        return passing.ended


class _Passing:
    """A read that gives on what arrives, in the task that brings it: to wake one for each token would cost more.

    Args:
        feed: what is read.
        take: takes elements, and returns whether it takes more.

    Attributes:
        over: done once nothing more is given on.
        ended: the sequence has ended.
        error: what reading it, or `take`, raised.
    """

    def __init__(self, feed: AsyncFeed, take: Callable[[types.GeneratedElements], bool]) -> None:
        self.over = asyncio.get_running_loop().create_future()
        self.ended = False
        self.error: BaseException | None = None
        self._feed, self._take = feed, take
        self._busy = False

    def go_on(self) -> None:
        """Give on what is unread. Does nothing while it is being called: what is taken changes the reader too."""
        if self._busy:
            return
        self._busy = True
        try:
            while self._feed.reader.ready and not self.over.done():
                elements = self._feed.take()
                self.ended = elements is None
                if elements is None or not self._take(elements):
                    self.over.set_result(None)
        except BaseException as error:
            if not is_fault(error):
                raise
            self.error = error
            self.over.set_result(None)
        finally:
            self._busy = False
