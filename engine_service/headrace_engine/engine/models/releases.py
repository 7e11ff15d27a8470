"""Releases of models that are remembered, so that a repeated one succeeds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

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
    """Releases of the last RELEASE_MEMORY seconds, by the model's name.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._releases: dict[str, Release] = {}

    def find(self, model_name: str) -> Release | None:
        """Return the release of a model; None if it is too long ago, or there was none."""
        horizon = self._clock() - RELEASE_MEMORY
        self._releases = {name: release for name, release in self._releases.items() if release.time >= horizon}
        return self._releases.get(model_name)

    def remember(self, view: ModelView, leaving: asyncio.Task[None]) -> Release:
        """Record a release that happens now, and return it."""
        release = self._releases[view.model_name] = Release(view, leaving, self._clock())
        return release

    def forget(self, model_name: str) -> None:
        """Forget the release of a model, whose name is in use again."""
        self._releases.pop(model_name, None)
