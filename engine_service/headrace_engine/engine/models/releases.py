"""Models that have left the registry: the work that frees them, and their releases, so that a repeated one succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from headrace_engine.engine.results.statistics import Clock
from headrace_engine.model_types import ModelView

RELEASE_MEMORY = 600.0
"""Seconds for which a repeated release succeeds, unless the name is in use again."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release: its answer, the task that frees the model, and its time."""

    view: ModelView
    leaving: asyncio.Task[None]
    time: float


class Releases:
    """Releases of the last RELEASE_MEMORY seconds, by the model's name, and the models that are being freed.

    Args:
        clock: in seconds.
        freed: called when a model is free.
    """

    def __init__(self, clock: Clock, freed: Callable[[], None]) -> None:
        self._clock = clock
        self._freed = freed
        self._leaving: set[asyncio.Task[None]] = set()
        self._releases: dict[str, Release] = {}

    def find(self, model_name: str) -> Release | None:
        """Return the release of a model; None if it is too long ago, or there was none."""
        horizon = self._clock() - RELEASE_MEMORY
        self._releases = {name: release for name, release in self._releases.items() if release.time >= horizon}
        return self._releases.get(model_name)

    def free(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Free a model in the background; `close` waits for it."""
        leaving = asyncio.create_task(closing)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._gone)
        return leaving

    def remember(self, view: ModelView, leaving: asyncio.Task[None]) -> Release:
        """Record a release that happens now, and return it."""
        release = self._releases[view.model_name] = Release(view, leaving, self._clock())
        return release

    def forget(self, model_name: str) -> None:
        """Forget the release of a model, whose name is in use again."""
        self._releases.pop(model_name, None)

    async def close(self) -> None:
        """Wait until all models are free."""
        await asyncio.gather(*self._leaving)

    def _gone(self, leaving: asyncio.Task[None]) -> None:
        self._leaving.discard(leaving)
        self._freed()
