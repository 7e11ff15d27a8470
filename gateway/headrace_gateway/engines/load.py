"""Load of an engine: its last report, plus the requests placed on it since."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from headrace_proto.v1 import model_pb2
from headrace_proto.v1.session_pb2 import ModelLoad

TRAVEL_SECONDS = 0.02
"""Assumed age of a report when it arrives, in seconds: it does not count requests placed since then."""

REPORT_SECONDS = 0.25
"""Seconds after which a placed request is in the engine's reports: engines check every 100 ms and report changes."""


class EngineLoad:
    """Number of requests on one engine.

    The engine reports its load on the session stream as it changes. Without a stream, polls ask for it.

    Args:
        now: monotonic clock, in seconds.

    Attributes:
        followed: reports arrive on the session stream; polls need not ask.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.followed = False
        self._now = now
        self._models: dict[str, ModelLoad] = {}
        self._polled = 0
        self._starting = 0
        self._started: deque[float] = deque()

    @property
    def requests(self) -> int:
        """Requests running, waiting and being started, as last reported."""
        if self.followed:
            self.counted(self._now() - REPORT_SECONDS)
        return self._known + self._starting + len(self._started)

    @property
    def waiting(self) -> int:
        """Requests in the engine's queue, as last reported."""
        return sum(load.waiting for load in self._models.values())

    @property
    def capacity(self) -> int:
        """Ids that the engine's KV pools hold, as last reported; 0: unknown."""
        return sum(load.tokens_total for load in self._models.values())

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Count a request while it is being started, and after that until the engine's reports include it."""
        self._starting += 1
        try:
            yield
            self._started.append(self._now())
        finally:
            self._starting -= 1

    def counted(self, before: float) -> None:
        """Forget requests started before that moment: reports include them, or they have ended."""
        while self._started and self._started[0] <= before:
            self._started.popleft()

    def polled(self, requests: int) -> None:
        """Take the result of a poll; ignored while the engine sends reports."""
        if not self.followed:
            self._polled = requests

    def update(self, loads: Iterable[ModelLoad]) -> bool:
        """Apply a load report. Return True if a model's state, core epoch or readiness changed."""
        self.followed = True
        self.counted(self._now() - TRAVEL_SECONDS)
        changed = False
        for load in loads:
            known = self._models.get(load.model_name)
            changed = changed or known is None or _condition(known) != _condition(load)
            self._models[load.model_name] = load
            if load.state == model_pb2.MODEL_STATE_RELEASED:
                del self._models[load.model_name]
        return changed

    def lost(self) -> None:
        """Keep the last report until a poll, after the session stream has ended."""
        self._polled = self._known
        self.followed = False
        self._models.clear()

    @property
    def _known(self) -> int:
        if self.followed:
            return sum(load.running + load.waiting for load in self._models.values())
        return self._polled


def _condition(load: ModelLoad) -> tuple[model_pb2.ModelState, int, bool]:
    return load.state, load.core_epoch, load.draining
