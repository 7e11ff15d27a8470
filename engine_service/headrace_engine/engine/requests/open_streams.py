"""Count of the open result streams."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class OpenStreams:
    """Counts open result streams, so that a stopping engine can wait for them."""

    def __init__(self) -> None:
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    def begin(self) -> None:
        """Count a new stream."""
        self._open += 1
        self._none_open.clear()

    def end(self) -> None:
        """Count the end of a stream: its reader has received everything, or has left."""
        self._open -= 1
        if self._open == 0:
            self._none_open.set()

    async def ended(self, limit: float) -> int:
        """Wait until no stream is open, for at most `limit` seconds; return the number of open ones."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), limit)
        return self._open
