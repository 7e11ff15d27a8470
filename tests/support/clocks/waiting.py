"""Waits for events rather than for fixed times; a wait that times out says what did not happen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LIMIT = 120.0
"""Timeout of a wait in seconds, long enough for however busy a machine."""

DEADLINES = (0.2, 1.0, 5.0, 25.0, LIMIT)
"""Time limits to try for a call that must arrive and then time out: on a busy machine a short one ends too early."""


def wait_until(condition: Callable[[], bool], failure: str | Callable[[], str], seconds: float = LIMIT) -> None:
    """Poll until a condition holds.

    Args:
        failure: what to say if it does not; a function, if that is known only then.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"after {seconds:g} s: {failure() if callable(failure) else failure}"
        time.sleep(0.005)


def comes(event: threading.Event, failure: str) -> None:
    """Wait for an event of another thread."""
    assert event.wait(LIMIT), f"after {LIMIT:g} s: {failure}"


@asynccontextmanager
async def ends(failure: str, seconds: float = LIMIT) -> AsyncIterator[None]:
    """Limit a wait for events; fail by name if it times out."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"after {seconds:g} s: {failure}") from None


async def happens(event: asyncio.Event, failure: str) -> None:
    """Wait for an event of this loop."""
    async with ends(failure):
        await event.wait()


async def eventually(condition: Callable[[], bool], failure: str) -> None:
    """Poll until a condition without an event of its own holds."""
    async with ends(failure):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.005)
