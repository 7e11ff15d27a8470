"""Notices a core that is there and gets no further."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace_engine.commands import Ping

Sleep = Callable[[float], Awaitable[None]]
"""Waits for some seconds."""

_LOOKS = 10
"""Looks within the limit."""


class Heartbeat:
    """Pings one core at a time, and tells once when it has made no progress for too long.

    A core answers between two steps, and inside a long one with how far it is: who is slow is not dead. Looks are
    counted rather than time: where this process stood still itself, the core is given its whole limit again.

    Args:
        limit: seconds without progress.
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
        self._progress: int | None = None
        self._advanced = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """A core is ready: begin to ask it."""
        self.stop()
        self._answered, self._progress, self._advanced = self._asked, None, False
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def answer(self, number: int, progress: int | None = None) -> None:
        """The core answered the ping of this number.

        Args:
            progress: inside a step, what was done so far; None: it is between two steps.
        """
        if number <= self._answered:
            return  # Of the core before.
        self._answered = number
        self._advanced |= progress is None or progress != self._progress
        self._progress = progress

    async def _run(self) -> None:
        looks = 0
        while looks < _LOOKS:
            if self._answered == self._asked:
                self._asked += 1
                self._send(Ping(self._asked))
            await self._sleep(self.limit / _LOOKS)
            looks = 0 if self._advanced else looks + 1
            self._advanced = False
        self._task = None
        self._silent()
