"""Detects a core that is alive but makes no progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace_engine.ipc.commands import Ping

Sleep = Callable[[float], Awaitable[None]]
"""Waits for some seconds."""

_CHECKS = 10
"""Number of checks within the limit."""


class Heartbeat:
    """Pings one core at a time, and reports once when it has made no progress for too long.

    A core answers between two steps, and with its progress inside a long one, so a slow core is not taken for dead.
    Checks are counted instead of time: when this process itself was suspended, the core gets the whole limit again.

    Args:
        limit: seconds without progress.
        send: sends a ping to the core.
        silent: called when the limit has passed.
        sleep: waits between two checks.
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
        """Begin to ping a core that is ready."""
        self.stop()
        self._answered, self._progress, self._advanced = self._asked, None, False
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop pinging."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def answer(self, number: int, progress: int | None = None) -> None:
        """Record the core's answer to the ping of this number.

        Args:
            progress: progress within a step; None: the core is between two steps.
        """
        if number <= self._answered:
            return  # An answer of the previous core.
        self._answered = number
        self._advanced |= progress is None or progress != self._progress
        self._progress = progress

    async def _run(self) -> None:
        checks = 0
        while checks < _CHECKS:
            if self._answered == self._asked:
                self._asked += 1
                self._send(Ping(self._asked))
            await self._sleep(self.limit / _CHECKS)
            checks = 0 if self._advanced else checks + 1
            self._advanced = False
        self._task = None
        self._silent()
