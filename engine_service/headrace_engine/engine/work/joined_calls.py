"""Verbs in progress: repeated calls join them, and a cancelled call does not cancel the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace_engine.errors import HeadraceError


class JoinedCalls:
    """The tasks of one model's verbs that are in progress.

    Args:
        given_up: returns the error for callers of a verb that another call cancelled.
    """

    def __init__(self, given_up: Callable[[], HeadraceError]) -> None:
        self._given_up = given_up
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def busy(self, verb: str) -> bool:
        """True if the verb is in progress."""
        return verb in self._tasks

    def begin(self, verb: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a verb's work. The verb must not be in progress."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._settle(verb, done))
        self._tasks[verb] = task

    async def join(self, verb: str) -> None:
        """Wait until the verb is done, if it is in progress.

        Raises:
            HeadraceError: the verb failed or was cancelled.
        """
        task = self._tasks.get(verb)
        if task is None:
            return
        await asyncio.wait([task])
        if task.cancelled():
            raise self._given_up()
        task.result()

    def cancel(self, *verbs: str) -> None:
        """Cancel those of the verbs that are in progress."""
        for verb in verbs:
            task = self._tasks.pop(verb, None)
            if task is not None:
                task.cancel()

    def _settle(self, verb: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(verb) is task:
            del self._tasks[verb]
        if not task.cancelled():
            task.exception()  # Mark it as retrieved: no call may have joined, and the model's state has the failure.
