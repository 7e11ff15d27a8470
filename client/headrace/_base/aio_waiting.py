"""Waiting in an event loop: signals, clocks, and the one loop that a client belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

from headrace._base.retry import Time


class Signal:
    """Wakes waiting tasks: a condition without a lock, as nothing else runs in the loop between two awaits."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []

    async def wait(self) -> None:
        """Wait for the next `notify_all`."""
        news = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await news
        finally:
            self._waiting.discard(news)

    @contextlib.contextmanager
    def calling(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call a function with each `notify_all` within this context, before that returns. It must not raise."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def notify_all(self) -> None:
        """Wake all tasks that wait now."""
        for news in self._waiting:
            if not news.done():
                news.set_result(None)
        for listener in self._listeners:
            listener()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass


class AsyncClock(Time, Protocol):
    """The source of time of an asynchronous client."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""

    async def wait(self, signal: Signal, seconds: float | None) -> None:
        """Wait for a signal at most this many seconds; None: without limit."""


class AsyncSystemClock:
    """Real time."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed point in time."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)

    async def wait(self, signal: Signal, seconds: float | None) -> None:
        """Wait for a signal at most this many seconds; None: without limit."""
        if seconds is None:  # Every token of a stream waits so.
            await signal.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await signal.wait()


class HomeLoop:
    """The event loop that owns a client and its queues: the one in which it is first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Check that the current event loop is the client's.

        Raises:
            RuntimeError: it is another loop, or none.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(
                "this AsyncClient, or queue of one, belongs to another event loop: make a client in each loop, and use "
                "it and its queues there only"
            )

    def submit(self, task: Callable[[], Any]) -> None:
        """Run a task in the loop soon, unless the loop has ended. For finalizers, which may run in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(task)


def being_cancelled() -> bool:
    """Return whether the current task is being cancelled, rather than something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
