"""Waiting in an event loop: for news, for time to pass, and only in the one loop that a client belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from headrace._base.retry import Time


class Signal:
    """Wakes all who wait. In one loop nobody else runs between two awaits, so it guards by itself: entering is free."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Waits for the next `notify_all`."""
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await news
        finally:
            self._waiting.discard(news)

    def notify_all(self) -> None:
        """Wakes all who wait now."""
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass


class AsyncClock(Time, Protocol):
    """Time, as a client sees it that waits in an event loop."""

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""

    async def wait(self, signal: Signal, seconds: float | None) -> None:
        """Waits for news at most this long; None: without a limit."""


class AsyncSystemClock:
    """Real time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        await asyncio.sleep(seconds)

    async def wait(self, signal: Signal, seconds: float | None) -> None:
        """Waits for news at most this long; None: without a limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await signal.wait()


class HomeLoop:
    """The loop that a client belongs to: the one in which it is first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Makes sure to be there.

        Raises:
            RuntimeError: this is another loop, or none.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this AsyncClient, or queue of one, belongs to another event loop: make a client in each loop, and use "
                "it and its queues there only"
            )

    def ask(self, task: Callable[[], Any]) -> None:
        """Has something done there soon; not at all where the loop has ended. For finalizers, which run anywhere."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(task)


def being_cancelled() -> bool:
    """Whether it is this task that is cancelled, where something that it awaited was."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
