"""Notices a core that is there and answers no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace_engine.commands import Ping

Sleep = Callable[[float], Awaitable[None]]
"""Waits for some seconds."""

_LOOKS = 10
"""Looks within the limit."""


class Heartbeat:
    """Pings one core at a time, and tells once when it has owed the answer for too long.

    It counts its own looks rather than time: where this process stood still itself, the core is given its whole limit
    again.

    Args:
        limit: seconds that an answer may take; a core answers between two steps.
        send: gives a ping to the core.
        silent: called when the limit is over.
        sleep: waits between two looks.
    """

    def __init__(
        self, limit: float, send: Callable[[Ping], None], silent: Callable[[], None], sleep: Sleep = asyncio.sleep
    ) -> None:
        self.limit = limit
        self._send = send
        self._silent = silent
        self._sleep = sleep
        self._asked = 0
        self._answered = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """A core is ready: begin to ask it."""
        self.stop()
        self._answered = self._asked
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def answer(self, number: int) -> None:
        """The core answered the ping of this number."""
        self._answered = max(self._answered, number)

    async def _run(self) -> None:
        looks = 0
        while looks < _LOOKS or self._answered == self._asked:
            if self._answered == self._asked:
                looks = 0
                self._asked += 1
                self._send(Ping(self._asked))
            await self._sleep(self.limit / _LOOKS)
            looks += 1
        self._task = None
        self._silent()
