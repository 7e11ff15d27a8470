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
    """An asynchronous client with the methods of `Client`.

        async with AsyncClient("gw1:7070,gw2:7070") as client:
            handle, queue = await client.start_request("smol", "Once upon a time")
            async for elements in queue:
                print(elements.text, end="", flush=True)

    It connects with the first call. The client and its queues belong to the event loop in which they are first used:
    any number of its tasks may share them; other threads and loops get a RuntimeError. As a context manager it stops
    and releases, on exit, the requests that were started through it, and closes.

    Args:
        address: as for `Client`, or an `AsyncTransport`. "inprocess:" starts the engine in threads of its own and
            waits until it is ready.
        timeout: default timeout in seconds of calls that do not wait for a model or request to change; None: no limit.
        owner: owner of the requests. An engine accepts any name. A gateway cannot authenticate owners yet: it treats
            all clients as one owner and rejects a name (InvalidRequestError). Default "".
        retry: policy for retrying failed calls and broken streams.
        handover: continue started requests on another engine when theirs is lost or shuts down: the queues go on where
            they were, and the handle stays the same. False: such queues raise `EngineLostError`, or end as DRAINED.
        clock: source of time, for tests.
        **options: options of the transport, as for `Client`.

    Raises:
        ValueError: the address cannot be parsed, or the timeout is not a number.
        TypeError: the transport has no such option.
        ImportError: "inprocess:" without the package headrace-engine.
        RuntimeError: this process was forked from one that used gRPC.
    """

    def __init__(
        self,
        address: str | AsyncTransport = "localhost:7070",
        *,
        timeout: float | None = 60.0,
        owner: str = "",
        retry: RetryPolicy | None = None,
        handover: bool = True,
        clock: AsyncClock | None = None,
        **options: Any,
    ) -> None:
        limit = check_timeout(timeout)
        transport = open_async_transport(address, options) if isinstance(address, str) else address
        self._connection = AsyncConnection(
            transport,
            timeout=limit,
            owner=owner,
            policy=retry or RetryPolicy(),
            handover=handover,
            clock=clock or AsyncSystemClock(),
        )
        dropped = self._connection.requests.client_dropped
        weakref.finalize(self, self._connection.home.submit, dropped).atexit = False

    async def close(self) -> None:
        """Close the client and its connections; blocked reads raise UnavailableError. Closing again does nothing.

        Requests continue on the engine until their leases expire, unless another client reads them.
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
                await self._release_leaving(handle)
            except HeadraceError as error:
                logger.warning("could not release the remaining requests, which end with their leases: %s", error)
                return
