"""Tasks that nobody waits for at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Keeps tasks while they run: a loop by itself would let them be collected."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Begins some work."""
        task = asyncio.create_task(work, name=name)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keeps a task too that was begun elsewhere."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def cancel(self) -> None:
        """Cancels what runs."""
        for task in self._running:
            task.cancel()

    async def wait(self) -> None:
        """Waits until all have ended, those too that begin meanwhile."""
        while self._running:
            await asyncio.wait(self._running)
