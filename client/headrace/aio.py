"""The asynchronous client."""

from __future__ import annotations

import logging
import weakref
from types import TracebackType
from typing import Any, Self

from headrace._api.aio_calls import AsyncRequestCalls
from headrace._api.aio_connection import AsyncConnection
from headrace._api.connection import check_timeout
from headrace._base.aio_waiting import AsyncClock, AsyncSystemClock
from headrace._base.retry import RetryPolicy
from headrace._transport.aio_transport import AsyncTransport, open_async_transport
from headrace.errors import HeadraceError

logger = logging.getLogger(__name__)


class AsyncClient(AsyncRequestCalls):
    """A connection to Headrace for an event loop: `Client`, with the same names and rules, awaited.

        async with AsyncClient("gw1:7070,gw2:7070") as client:
            handle, queue = await client.start_request("smol", "Once upon a time")
            async for elements in queue:
                print(elements.text, end="", flush=True)

    It belongs to the event loop in which it is first used, with its queues, and is used there alone: any number of
    tasks may share it, threads and other loops may not (RuntimeError). Leaving it stops and releases what was started
    through it and not released, then closes.

    Args:
        address: as for `Client`; "inprocess:" starts the engine, in threads of its own, and waits until it is there.
            Or an `AsyncTransport`.
        timeout: limit in seconds of calls that bring none of their own and do not wait for something to happen; None:
            none.
        owner: whose requests they are. An engine believes whoever reaches it; a gateway has no API keys to tell owners
            by yet, so all its clients are one owner and it refuses a name (InvalidRequestError). Default "".
        retry: how failed calls and broken streams are tried again.
        clock: time, for tests.
        **options: of the transport, as for `Client`.

    Raises:
        ValueError: the address cannot be parsed, or the timeout is no number; the message names it.
        TypeError: the transport has no such option.
        ImportError: "inprocess:" needs the package headrace-engine.
        RuntimeError: this process was forked from one that used gRPC.

    No connection is made before the first call.
    """

    def __init__(
        self,
        address: str | AsyncTransport = "localhost:7070",
        *,
        timeout: float | None = 60.0,
        owner: str = "",
        retry: RetryPolicy | None = None,
        clock: AsyncClock | None = None,
        **options: Any,
    ) -> None:
        limit = check_timeout(timeout)
        transport = open_async_transport(address, options) if isinstance(address, str) else address
        self._connection = AsyncConnection(
            transport, timeout=limit, owner=owner, policy=retry or RetryPolicy(), clock=clock or AsyncSystemClock()
        )
        dropped = self._connection.requests.client_dropped
        weakref.finalize(self, self._connection.home.ask, dropped).atexit = False

    async def close(self) -> None:
        """Ends all calls and connections; waiting reads wake and raise UnavailableError.

        Requests go on, and are stopped by their leases if nobody comes for them. Closing twice is once.
        """
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._release_all()
        finally:
            await self.close()

    async def _release_all(self) -> None:
        for handle in self._connection.requests.unreleased():
            try:
                await self._release_once(handle)
            except HeadraceError as error:
                logger.warning("could not release the remaining requests, which end with their leases: %s", error)
                return
