"""Blocking reads of one sequence in an event loop."""

from __future__ import annotations

import asyncio

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
        with self.reader.reading():
            deadline = Deadline(self._clock, seconds)
            self._begin()
            if not self.reader.ready and seconds is not None:
                # Let results arrive, even if the caller polls without awaiting anything else.
                await asyncio.sleep(0)
            while self._unanswered(deadline):
                await self._clock.wait(self.changed, self._patience(deadline))
            return self._take()
