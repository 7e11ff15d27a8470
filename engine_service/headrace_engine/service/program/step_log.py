"""Logs progress of a model's install or start: its phase, and for how long it has lasted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.logs import logger

from headrace_engine.model_types import ModelProgress, ModelState, ModelView

INTERVAL = 3.0
"""Seconds between log lines about one phase."""

_log = logger(__name__)


@dataclass(slots=True)
class _Phase:
    """Current phase of a model, its start, and its progress."""

    name: str
    began: float
    progress: ModelProgress | None


class StepLog:
    """Logs a line when a phase begins, and one every INTERVAL while it lasts, whether it advances or not.

    Args:
        clock: monotonic clock, in seconds.
        sleep: waits until the next check.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._steps: dict[str, _Phase] = {}
        self._lines = LogBudget(clock)

    def note(self, view: ModelView) -> None:
        """Take the new state of a model."""
        name, step = _name(view), self._steps.get(view.model_name)
        if name is None:
            self._steps.pop(view.model_name, None)
        elif step is not None and step.name == name:
            step.progress = view.progress
        else:
            self._steps[view.model_name] = _Phase(name, self._clock(), view.progress)
            if view.progress is not None:  # else the log line about the state suffices
                self._report(view.model_name)

    async def run(self) -> None:
        """Log phases that last, until cancelled."""
        while True:
            await self._sleep(INTERVAL)
            for model, step in self._steps.items():
                if self._clock() - step.began >= INTERVAL:
                    self._report(model)

    def _report(self, model: str) -> None:
        step = self._steps[model]
        if self._lines.spend("model_progress", party=model) is None:
            return
        seconds = round(self._clock() - step.began, 1)
        _log.info("model_progress", model=model, phase=step.name, **_sizes(step.progress), seconds=seconds)


def _name(view: ModelView) -> str | None:
    """Return the phase; the state while a core starts and reports none yet; None if nothing is in progress."""
    if view.progress is not None:
        return view.progress.phase.value
    return view.state.value if view.state is ModelState.STARTING else None


def _sizes(progress: ModelProgress | None) -> dict[str, int]:
    if progress is None:
        return {}
    sizes = {"bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total}
    return {name: size for name, size in sizes.items() if size}
