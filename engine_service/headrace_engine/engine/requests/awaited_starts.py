"""Starts in progress, and their waiting callers."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace_engine.request_types import AcceptedRequest

RETRY_TIME = 10.0
"""Seconds for which a start continues without waiting callers, so that a retry finds it."""


class AwaitedStarts:
    """Cancels starts without callers: nothing was accepted yet, so a later retry only loses time."""

    def __init__(self) -> None:
        self._callers: Counter[asyncio.Future[AcceptedRequest]] = Counter()

    async def wait(self, start: asyncio.Future[AcceptedRequest]) -> AcceptedRequest:
        """Return the answer of a start. If a caller is cut, the start continues for other callers, and for a retry."""
        self._callers[start] += 1
        try:
            return await asyncio.shield(start)
        finally:
            self._callers[start] -= 1
            if not self._callers[start]:
                del self._callers[start]
                if not start.done():
                    asyncio.get_running_loop().call_later(RETRY_TIME, self._give_up, start)

    async def left(self, start: asyncio.Future[AcceptedRequest]) -> bool:
        """Return True if a start was given up, after waiting until its key is free."""
        if not (isinstance(start, asyncio.Task) and start.cancelling()) or (start.done() and not start.cancelled()):
            return False
        await asyncio.wait([start])
        return True

    def _give_up(self, start: asyncio.Future[AcceptedRequest]) -> None:
        if start not in self._callers:
            start.cancel()
