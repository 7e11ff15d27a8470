"""The lines that show an operator that something goes on: what a model's verb is at, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace_engine.model_types import ModelProgress, ModelState, ModelView
from headrace_engine.service.logs import logger

INTERVAL = 3.0
"""Seconds between two lines about one step."""

_log = logger(__name__)


@dataclass(slots=True)
class _Step:
    """What a model is at, since when, and how far it is."""

    name: str
    began: float
    progress: ModelProgress | None


class StepLog:
    """One line when a step begins, and one every INTERVAL while it lasts, whether it moves or not.

    Args:
        clock: seconds, for how long a step has lasted.
        sleep: waits for the next look at all steps.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._steps: dict[str, _Step] = {}

    def note(self, view: ModelView) -> None:
        """A model changed."""
        name, step = _name(view), self._steps.get(view.model_name)
        if name is None:
            self._steps.pop(view.model_name, None)
        elif step is not None and step.name == name:
            step.progress = view.progress
        else:
            self._steps[view.model_name] = _Step(name, self._clock(), view.progress)
            if view.progress is not None:  # Else the line about the state says it.
                self._tell(view.model_name)

    async def run(self) -> None:
        """Tell what lasts, until cancelled."""
        while True:
            await self._sleep(INTERVAL)
            for model, step in self._steps.items():
                if self._clock() - step.began >= INTERVAL:
                    self._tell(model)

    def _tell(self, model: str) -> None:
        step = self._steps[model]
        seconds = round(self._clock() - step.began, 1)
        _log.info("model_progress", model=model, phase=step.name, **_sizes(step.progress), seconds=seconds)


def _name(view: ModelView) -> str | None:
    """The phase; where a core is being started and has said nothing yet, the state; None where nothing goes on."""
    if view.progress is not None:
        return view.progress.phase.value
    return view.state.value if view.state is ModelState.STARTING else None


def _sizes(progress: ModelProgress | None) -> dict[str, int]:
    if progress is None:
        return {}
    sizes = {"bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total}
    return {name: size for name, size in sizes.items() if size}
