"""How long a stream may say nothing."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Silence:
    """Surrounds the reading of a stream, and cuts it with TimeoutError once nothing was heard for too long.

    A message costs no timer, only a look at the clock.

    Args:
        seconds: that may pass without a word.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._heard = self._loop.time()
        self._alarm: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """Something was said."""
        self._heard = self._loop.time()

    def allow(self, seconds: float) -> None:
        """From now on so many seconds may pass without a word."""
        self._seconds = seconds
        if self._alarm is not None:
            self._alarm.cancel()
        self._look()

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        end = self._heard + self._seconds
        if self._loop.time() >= end:
            self._limit.reschedule(end)
        else:
            self._alarm = self._loop.call_at(end, self._look)
