"""How loaded an engine is: what it told last, and what was placed on it since."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from headrace_proto.v1 import model_pb2
from headrace_proto.v1.session_pb2 import ModelLoad

TRAVEL_SECONDS = 0.02
"""Figures that arrive may have been taken so long before, and do not count what was placed meanwhile."""

TOLD_SECONDS = 0.25
"""What was placed is counted after so long: engines look every 100 ms and tell what changed."""


class EngineLoad:
    """Requests on one engine.

    The engine tells its figures on the session stream as they change. While there is none, polls ask for them.

    Args:
        now: a monotonic clock, seconds.

    Attributes:
        followed: figures come by themselves; polls need not ask.
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
        """Requests running, waiting and being started, as far as known."""
        if self.followed:
            self.counted(self._now() - TOLD_SECONDS)
        return self._known + self._starting + len(self._started)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Counts a request while it is being started, and, once started, until the engine's own figures count it."""
        self._starting += 1
        try:
            yield
            self._started.append(self._now())
        finally:
            self._starting -= 1

    def counted(self, before: float) -> None:
        """What was started before that moment is in the figures, or has ended."""
        while self._started and self._started[0] <= before:
            self._started.popleft()

    def polled(self, requests: int) -> None:
        """Takes the figure of a poll; it does not count while the engine tells its own."""
        if not self.followed:
            self._polled = requests

    def told(self, loads: Iterable[ModelLoad]) -> bool:
        """Takes what the engine tells; returns whether a model's state, its core or its readiness is another."""
        self.followed = True
        self.counted(self._now() - TRAVEL_SECONDS)
        news = False
        for load in loads:
            known = self._models.get(load.model_name)
            news = news or known is None or _condition(known) != _condition(load)
            self._models[load.model_name] = load
            if load.state == model_pb2.MODEL_STATE_RELEASED:
                del self._models[load.model_name]
        return news

    def lost(self) -> None:
        """The engine tells nothing more: what it told last holds until a poll."""
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
