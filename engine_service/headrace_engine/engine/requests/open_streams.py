"""Streams that still deliver results."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class OpenStreams:
    """Counts the streams of results that are open, so that an engine that goes away can wait for them."""

    def __init__(self) -> None:
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def begin(self) -> None:
        """A stream of results begins."""
        self._open += 1
        self._none_open.clear()

    def end(self) -> None:
        """One has ended: its reader has everything, or has left."""
        self._open -= 1
        if self._open == 0:
            self._none_open.set()

    async def ended(self, limit: float) -> int:
        """Wait until none is open, for at most `limit` seconds; return how many are."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), limit)
        return self._open
