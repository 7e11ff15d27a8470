"""The calls that have no end of their own, which would hold up the end of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace_engine.errors import Unavailable

WATCHES = frozenset({"WatchModel", "WatchEngineStat"})
"""They end when a drain begins: what they would tell from then on is that the engine goes away."""

ENDLESS = WATCHES | {"Watch", "ServerReflectionInfo"}
"""Those of health and reflection end with the server."""


class EndlessCalls:
    """Ends calls that last as long as their clients want, with DRAINING."""

    def __init__(self) -> None:
        self._names: dict[asyncio.Task[Any], str] = {}
        self._ended: frozenset[str] = frozenset()

    @contextmanager
    def entered(self, name: str) -> Iterator[None]:
        """Count the current task as a call, if calls of this name are endless.

        Args:
            name: the RPC's name.

        Raises:
            Unavailable: such calls were ended.
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
            if name not in self._ended or task.uncancel():  # Its client left, before or as well.
                raise
            raise _draining() from None
        finally:
            del self._names[task]

    def end(self, names: frozenset[str]) -> None:
        """End the calls of these names, and refuse new ones."""
        self._ended |= names
        for task, name in self._names.items():
            if name in names:
                task.cancel()


def _draining() -> Unavailable:
    return Unavailable("the engine is shutting down", retry_after=1.0)
