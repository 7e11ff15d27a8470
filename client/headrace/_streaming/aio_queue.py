"""The result queue of the asynchronous client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from headrace_proto.v1 import request_pb2

from headrace import types
from headrace._base.fork import check_process
from headrace._streaming.aio_feed import AsyncFeed
from headrace._streaming.base_queue import BaseQueue, seconds_of


class AsyncResultQueue(BaseQueue):
    """The results of one sequence, read from a position on: `ResultQueue` for an event loop.

    `Get`, `GetWithTimeout`, `GetNoWait`, `RequestStatInfo` and `async for` are awaited. `GenerateStatus`,
    `GeneratedLength` and the properties return at once; a loop that polls them must await something in between, such
    as `asyncio.sleep(0)`, so that results can arrive.

    A cancelled read consumes nothing: the next read returns its tokens. A queue belongs to the event loop of its
    client, and any number of tasks may read it.

    Queues are returned by `AsyncClient.start_request` and `AsyncClient.open_queue`.
    """

    def __init__(
        self,
        feed: AsyncFeed,
        *,
        request: types.AcceptedRequest,
        index: int,
        fetch_info: Callable[[], Awaitable[request_pb2.SequenceInfo | None]],
    ) -> None:
        super().__init__(feed, request=request, index=index)
        self._feed = feed
        self._fetch_info = fetch_info

    async def Get(self) -> types.GeneratedElements | None:
        """Return all unread tokens as one element, waiting for the first one; None once the sequence has ended.

        Raises:
            EngineLostError: the engine is gone, and nothing is left to read.
            InternalServerError: the engine failed, or the results are damaged, and nothing is left to read.
            RequestReleasedError: the request was released.
            UnavailableError: no server could be reached for too long, or the client was closed.
        """
        return await self._read(None)

    async def GetWithTimeout(self, timeout_ms: float) -> types.GeneratedElements | None:
        """Return as `Get()`, waiting at most `timeout_ms` for the first token; None on timeout too.

        Args:
            timeout_ms: milliseconds; 0 does not wait.

        Raises:
            TypeError: timeout_ms is not a number.
            ValueError: timeout_ms is negative or NaN.
            HeadraceError: as `Get()`.
        """
        return await self._read(seconds_of(timeout_ms))

    async def GetNoWait(self) -> types.GeneratedElements | None:
        """Return as `Get()`, without waiting for tokens that are yet to be generated; None if nothing is unread.

        Raises:
            HeadraceError: as `Get()`.
        """
        return await self._read(0.0)

    async def pass_on(self, take: Callable[[types.GeneratedElements], bool]) -> bool:
        """Call a function with all unread tokens as one element, now and whenever more arrive, until the end.

        For programs that relay many sequences: the function is called by the task that receives the tokens, so that no
        other has to be woken for each of them. It must not block. A cancelled call consumes nothing more.

        Args:
            take: takes an element, and returns whether it takes more.

        Returns:
            True once the sequence has ended and all was taken; False after `take` returned False.

        Raises:
            HeadraceError: as `Get()`.
            Exception: what `take` raised.
        """
        check_process(self._process)
        return await self._feed.pass_on(take)

    async def RequestStatInfo(self) -> types.RequestStat:
        """Return the sequence's statistics, as `ResultQueue.RequestStatInfo`.

        Raises:
            HeadraceError: the sequence runs, and the call failed.
        """
        known = self._known_stat()
        return self._answered_stat(await self._fetch_info()) if known is None else known

    def __aiter__(self) -> Self:
        """Iterate over elements until the end of the sequence; raises as `Get()`."""
        return self

    async def __anext__(self) -> types.GeneratedElements:
        """Return the next element, as `Get()`."""
        if (elements := await self.Get()) is None:
            raise StopAsyncIteration
        return elements

    async def _read(self, seconds: float | None) -> types.GeneratedElements | None:
        check_process(self._process)
        return await self._feed.read(seconds)
