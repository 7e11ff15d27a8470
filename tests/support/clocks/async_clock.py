"""Time for asynchronous clients that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import contextlib

from headrace._base.aio_waiting import Signal


class FakeAsyncClock:
    """Pauses end at once, and move time. Waits for news last until `advance` passes their end.

    Attributes:
        now: seconds.
        slept: all pauses so far, in seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._waits: dict[asyncio.Timeout, float] = {}

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move time by the pause; return at once."""
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

    async def wait(self, signal: Signal, seconds: float | None) -> None:
        """Wait for news, or until time was moved past the timeout."""
        if seconds is None:
            await signal.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                self._waits[limit] = self.now + seconds
                try:
                    # Without a task in between: news that arrives right now must find a waiter.
                    await signal.wait()
                finally:
                    del self._waits[limit]

    def advance(self, seconds: float) -> None:
        """Move time, and end the waits that are due."""
        self.now += seconds
        for limit, end in self._waits.items():
            if end <= self.now:
                limit.reschedule(asyncio.get_running_loop().time())

    def waits(self, seconds: float) -> bool:
        """True if a wait for news ends in exactly this many seconds."""
        return any(abs(end - self.now - seconds) < 1e-6 for end in self._waits.values())
