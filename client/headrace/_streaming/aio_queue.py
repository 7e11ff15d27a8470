"""The results of one sequence, as a queue that is read in an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._base.fork import check_process
from headrace._streaming.aio_feed import AsyncFeed
from headrace._streaming.base_queue import BaseQueue, seconds_of


class AsyncResultQueue(BaseQueue):
    """A reader of one sequence, with a position: `ResultQueue` for an event loop, with the same names and rules.

    What may wait is awaited: `Get`, `GetWithTimeout`, `GetNoWait`, `RequestStatInfo`, and `async for`. What only tells
    what is known is a plain call: `GenerateStatus`, `GeneratedLength` and the properties. A loop that asks these again
    and again must await something in between (`asyncio.sleep(0)` will do), or nothing new can arrive.

    A wait that is cancelled, by `asyncio.timeout` or otherwise, takes nothing: the tokens are there for the next read.
    Queues belong to the event loop of their client, and any number of its tasks may read one.

    They come from `AsyncClient.start_request` and `AsyncClient.open_queue`.
    """

    def __init__(
        self,
        feed: AsyncFeed,
        *,
        request: types.AcceptedRequest,
        index: int,
        look: Callable[[], Awaitable[request_pb2.SequenceInfo | None]],
    ) -> None:
        super().__init__(feed, request=request, index=index)
        self._feed = feed
        self._look = look

    async def Get(self) -> types.GeneratedElements | None:
        """All unread tokens as one element; waits for the first one. None: the sequence ended and nothing is unread.

        Raises:
            EngineLostError: the engine is gone, and nothing is left to read.
            InternalServerError: the engine failed, or the results are damaged, and nothing is left to read.
            RequestReleasedError: the request was released.
            UnavailableError: nobody could be reached for too long, or the client was closed.
        """
        return await self._read(None)

    async def GetWithTimeout(self, timeout_ms: float) -> types.GeneratedElements | None:
        """As `Get()`, but waits at most so long for a first token; None: nothing came, or the sequence ended.

        Args:
            timeout_ms: milliseconds; 0 does not wait at all.

        Raises:
            TypeError: timeout_ms is no number.
            ValueError: timeout_ms is negative or NaN.
            HeadraceError: as `Get()`.
        """
        return await self._read(seconds_of(timeout_ms))

    async def GetNoWait(self) -> types.GeneratedElements | None:
        """As `Get()`, but does not wait for tokens that are still to be produced; None: nothing is unread.

        Raises:
            HeadraceError: as `Get()`.
        """
        return await self._read(0.0)

    async def RequestStatInfo(self) -> types.RequestStat:
        """Statistics of the sequence by name, as `ResultQueue.RequestStatInfo`.

        Raises:
            HeadraceError: the sequence runs, and the server could not be asked.
        """
        known = self._known_stat()
        return self._answered_stat(await self._look()) if known is None else known

    def __aiter__(self) -> Self:
        """Elements until the end; raises as `Get()`."""
        return self

    async def __anext__(self) -> types.GeneratedElements:
        """The next element, as `Get()`."""
        if (elements := await self.Get()) is None:
            raise StopAsyncIteration
        return elements

    async def _read(self, seconds: float | None) -> types.GeneratedElements | None:
        check_process(self._process)
        return await self._feed.read(seconds)
