"""Transports that hold a call back, and requests that are released."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.clocks.waiting import LIMIT


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels a task, and waits until it has ended so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Gate:
    """An answer that waits until it is let through; `asked` is set when it is wanted."""

    def __init__(self, answer: Any) -> None:
        self.asked = threading.Event()
        self.open = threading.Event()
        self._answer = answer

    def __call__(self, request: Any) -> Any:
        self.asked.set()
        assert self.open.wait(LIMIT)
        return self._answer
