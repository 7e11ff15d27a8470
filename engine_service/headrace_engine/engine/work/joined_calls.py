"""Verbs in progress: a repeated call joins, and a call that is cut leaves the work going."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace_engine.errors import HeadraceError


class Verbs:
    """The work of each verb of one model, while it lasts.

    Args:
        given_up: the error for those who had joined a verb that another call gave up.
    """

    def __init__(self, given_up: Callable[[], HeadraceError]) -> None:
        self._given_up = given_up
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def busy(self, verb: str) -> bool:
        """The verb is in progress."""
        return verb in self._tasks

    def begin(self, verb: str, work: Coroutine[Any, Any, None]) -> None:
        """Do a verb's work; it is not in progress yet."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._settle(verb, done))
        self._tasks[verb] = task

    async def join(self, verb: str) -> None:
        """Wait until the verb is done, if it is in progress.

        Raises:
            HeadraceError: why it failed, or that it was given up.
        """
        task = self._tasks.get(verb)
        if task is None:
            return
        await asyncio.wait([task])
        if task.cancelled():
            raise self._given_up()
        task.result()

    def cancel(self, *verbs: str) -> None:
        """Give the verbs up that are in progress."""
        for verb in verbs:
            task = self._tasks.pop(verb, None)
            if task is not None:
                task.cancel()

    def _settle(self, verb: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(verb) is task:
            del self._tasks[verb]
        if not task.cancelled():
            task.exception()  # Nobody may have joined; the failure is in the model's state.
