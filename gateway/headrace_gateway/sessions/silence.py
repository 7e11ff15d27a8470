"""Timeout of a silent stream."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Silence:
    """Context around the reading of a stream; raises TimeoutError once nothing was received for too long.

    A message sets no timer; it only records the time.

    Args:
        seconds: maximum seconds between messages.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """Record that a message arrived."""
        self._heard = self._loop.time()

    def allow(self, seconds: float) -> None:
        """Set the maximum seconds between messages, from now on."""
        self._seconds = seconds
        if self._timer is not None:
            self._timer.cancel()
        self._check()

    def expire(self) -> None:
        """Count the stream as silent now."""
        self._limit.reschedule(self._loop.time())

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _check(self) -> None:
        end = self._heard + self._seconds
        if self._loop.time() >= end:
            self._limit.reschedule(end)
        else:
            self._timer = self._loop.call_at(end, self._check)
