"""One sequence on its way to one queue of an asynchronous client."""

from __future__ import annotations

import asyncio

from headrace import types
from headrace._base.aio_waiting import AsyncClock, HomeLoop, Signal
from headrace._base.deadline import Deadline
from headrace._streaming.feed import BaseFeed
from headrace._streaming.reader import SequenceReader


class AsyncFeed(BaseFeed):
    """A reader that one task fills and others read.

    Args:
        reader: what has arrived.
        home: the loop in which all of this happens.
        clock: time.
        handle: the request.
        index: the sequence.
        request_id: the request, for errors.

    Attributes:
        changed: notified whenever the reader changed.
    """

    def __init__(
        self, reader: SequenceReader, home: HomeLoop, clock: AsyncClock, *, handle: str, index: int, request_id: str
    ) -> None:
        self.changed = Signal()
        super().__init__(reader, self.changed, handle=handle, index=index, request_id=request_id)
        self._home = home
        self._clock = clock

    async def read(self, seconds: float | None) -> types.GeneratedElements | None:
        """All that is unread; waits for it at most so long, None: without a limit.

        What an ended sequence still has is fetched whatever the limit is. Nothing is taken from a wait that is
        cancelled.
        """
        self._home.enter()
        with self.reader.reading():
            deadline = Deadline(self._clock, seconds)
            self._begin()
            if not self.reader.ready:
                # A loop that polls must not keep the tokens from coming.
                await asyncio.sleep(0)
            while self._unanswered(deadline):
                await self._clock.wait(self.changed, self._patience(deadline))
            return self._take()
