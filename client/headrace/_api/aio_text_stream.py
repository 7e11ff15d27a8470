"""The text of one request, as an asynchronous iterator that cleans up after itself."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from headrace._api.aio_connection import AsyncConnection
from headrace._streaming.aio_queue import AsyncResultQueue
from headrace.errors import HeadraceError

logger = logging.getLogger(__name__)

Start = Callable[[], Awaitable[tuple[str, AsyncResultQueue]]]
Release = Callable[[str], Awaitable[None]]


class AsyncTextStream:
    """An asynchronous iterator over the text of a request as it is generated.

    The first step, or `async with`, starts the request. It is stopped and released at the end of the iteration, by
    `close()`, when left as a context manager, when a step is cancelled, and when dropped. If the first step is
    cancelled while it starts the request, a task of the connection releases it soon after.

    Args:
        start: starts the request.
        release: stops and releases the request.
        connection: connection of the client.
    """

    def __init__(self, start: Start, release: Release, connection: AsyncConnection) -> None:
        self._start = start
        self._verb = release
        self._connection = connection
        self._queue: AsyncResultQueue | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def queue(self) -> AsyncResultQueue:
        """The request's result queue, as `TextStream.queue`.

        Raises:
            RuntimeError: the request has not been started.
        """
        if self._queue is None:
            raise RuntimeError("the request has not been started: iterate over the stream or enter it first")
        return self._queue

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> str:
        """Return the next non-empty piece of text.

        Raises:
            HeadraceError: as `AsyncClient.start_request` in the first step, and as `AsyncResultQueue.Get`.
        """
        try:
            if not self._closed:
                async for elements in await self._begun():
                    if elements.text:
                        return elements.text
        except BaseException:
            # A cancelled step awaits this too: the stream owns the request, and releasing it is bounded in time.
            await self.close()
            raise
        await self.close()
        raise StopAsyncIteration

    async def close(self) -> None:
        """Stop and release the request; do nothing the second time. A failure is logged, and the lease ends it."""
        closed, self._closed = self._closed, True
        if self._queue is not None and not closed:
            await _release(self._queue.handle, self._verb)

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _begun(self) -> AsyncResultQueue:
        async with self._starting:
            if self._queue is None:
                handle, self._queue = await self._start()
                dropped = weakref.finalize(
                    self, self._connection.home.submit, _Drop(handle, self._verb, self._connection)
                )
                dropped.atexit = False
        return self._queue


class _Drop:
    """Finalizer of a stream: releases its request, unless that was done. It must not refer to the stream."""

    def __init__(self, handle: str, verb: Release, connection: AsyncConnection) -> None:
        self._handle, self._verb, self._connection = handle, verb, connection

    def __call__(self) -> None:
        # An ending loop would not run a new task; the lease ends the request.
        if self._handle in self._connection.requests.unreleased() and not self._connection.ending:
            self._connection.cleanups.spawn(_release(self._handle, self._verb), "headrace-release")


async def _release(handle: str, release: Release) -> None:
    try:
        await release(handle)
    except HeadraceError as error:
        logger.warning("could not release a request, which ends with its lease: %s", error)
