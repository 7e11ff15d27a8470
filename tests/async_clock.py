"""Time for asynchronous clients that stands still until somebody moves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headrace.aio_waiting import Signal


class FakeAsyncClock:
    """Pauses are over at once, and move time. Waits for news last until `advance` passes their end.

    Attributes:
        now: seconds.
        slept: the pauses that there were.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._waits: dict[asyncio.Future[None], float] = {}

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Is over at once."""
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    async def wait(self, signal: Signal, seconds: float | None) -> None:
        """Waits for news, or until time was moved so far."""
        if seconds is None:
            await signal.wait()
            return
        due = asyncio.get_running_loop().create_future()
        news = asyncio.ensure_future(signal.wait())
        self._waits[due] = self.now + seconds
        try:
            await asyncio.wait([news, due], return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waits[due]
            due.cancel()
            news.cancel()

    def advance(self, seconds: float) -> None:
        """Moves time, and ends the waits whose time has come."""
        self.now += seconds
        for due, end in self._waits.items():
            if end <= self.now and not due.done():
                due.set_result(None)

    def waits(self, seconds: float) -> bool:
        """Whether somebody waits for news until just so far from now."""
        return any(abs(end - self.now - seconds) < 1e-6 for end in self._waits.values())


async def eventually(what: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until something comes true that gives no sign of its own."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.005)
