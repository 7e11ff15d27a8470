"""Background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Owns background tasks while they run; an event loop itself keeps weak references only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task and keep it."""
        task = asyncio.create_task(work, name=name)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that was started elsewhere."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in self._running:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all tasks have ended, including those that start while it waits."""
        while self._running:
            await asyncio.wait(self._running)
