"""Whether an engine that does not answer is slow or lost: how long nothing was heard of it, and who waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LOST_SECONDS = 10.0
"""Seconds without a sign of life after which an engine that does not answer polls counts as lost."""

START_SECONDS = 3.0
"""The same for starts, of which nothing was delivered yet: they go elsewhere sooner."""


@dataclass
class Wait:
    """A call that waits for an engine.

    Attributes:
        call: the call.
        seconds: seconds without a sign of life after which it is given up.
        given_up: it was.
    """

    call: Any
    seconds: float
    given_up: bool = False


class Liveness:
    """When an engine was last heard of, by answers and by messages of its session stream.

    Args:
        now: monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._heard = now()
        self._waits: dict[int, Wait] = {}

    def heard(self) -> None:
        """Record a sign of life."""
        self._heard = self._now()

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return self._now() - self._heard

    @contextmanager
    def waiting(self, call: Any, seconds: float) -> Iterator[Wait]:
        """Surround the wait for a call that `give_up` cancels after `seconds` without a sign of life."""
        wait = Wait(call, seconds)
        self._waits[id(wait)] = wait
        try:
            yield wait
        finally:
            del self._waits[id(wait)]

    def give_up(self) -> None:
        """Cancel the calls that should not wait any longer for an engine that does not answer."""
        silence = self.silence
        for wait in self._waits.values():
            if silence >= wait.seconds and not wait.given_up:
                wait.given_up = True
                wait.call.cancel()
