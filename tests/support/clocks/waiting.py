"""Waiting for a condition without sleeping for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


def wait_until(condition: Callable[[], bool], failure: str, seconds: float = 20.0) -> None:
    """Look again and again until a condition holds."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, failure
        time.sleep(0.01)


def within(seconds: float, what: Callable[[], bool]) -> bool:
    """Whether something comes true; for what gives no sign of its own."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@asynccontextmanager
async def ends(failure: str, seconds: float = 60.0) -> AsyncIterator[None]:
    """A wait for events, which fails by name where they never come."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"after {seconds:g} s: {failure}") from None
