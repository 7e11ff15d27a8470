"""Time that tests move by hand."""

from __future__ import annotations

import asyncio


class FakeClock:
    """Seconds since the Unix epoch, moved by the test."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


async def settle() -> None:
    """Let all tasks run until each of them waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)
