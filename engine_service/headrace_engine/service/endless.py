"""Calls that never end by themselves, and so would hold up the shutdown of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace_proto.server.interceptor import WATCHES, Context

from headrace_engine.errors import Unavailable

ENDLESS = WATCHES | {"Watch", "ServerReflectionInfo"}
"""The watches, and the streams of health and reflection, which end with the server."""


class EndlessCalls:
    """Ends calls that would last as long as their clients, with DRAINING."""

    def __init__(self) -> None:
        self._names: dict[asyncio.Task[Any], str] = {}
        self._writing: set[asyncio.Task[Any]] = set()
        self._ended: frozenset[str] = frozenset()

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        """Count the current task as a call, if calls of this name are endless.

        Args:
            name: the RPC's name.

        Raises:
            Unavailable: calls of this name were ended.
        """
        task = asyncio.current_task()
        if name not in ENDLESS or task is None:
            yield
            return
        if name in self._ended:
            raise _draining()
        self._names[task] = name
        try:
            yield
        except asyncio.CancelledError:
            if name not in self._ended or task.uncancel():  # its client left, before or as well
                raise
            raise _draining() from None
        finally:
            del self._names[task]

    async def write(self, context: Context, response: Any) -> None:
        """Write a response of the current task, a call that was entered.

        Raises:
            Unavailable: calls of its name were ended meanwhile. gRPC cannot send a status while it sends a message.
        """
        task = asyncio.current_task()
        assert task is not None, "calls are tasks"
        self._writing.add(task)
        try:
            await context.write(response)
        finally:
            self._writing.discard(task)
        if self._names[task] in self._ended:
            raise _draining()

    def end(self, names: frozenset[str]) -> None:
        """End the calls of these names, and refuse new ones."""
        self._ended |= names
        for task, name in self._names.items():
            if name in names and task not in self._writing:
                task.cancel()


def _draining() -> Unavailable:
    return Unavailable("the engine is shutting down", retry_after=1.0)
