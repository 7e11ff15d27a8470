"""Logs about models for operators: states, lost and restarted cores, and progress of long phases."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.logs import logger

from headrace_engine.engine.engine import Engine
from headrace_engine.errors import HeadraceError, NotFound
from headrace_engine.model_types import EffectiveConfig, ModelState, ModelView
from headrace_engine.service.failures import closing
from headrace_engine.service.program.step_log import StepLog

_log = logger(__name__)


class Announcer:
    """Logs how the models of an engine change. Callers who install and release one after the other fill no log.

    Args:
        steps: logs progress of long phases.
        lines: budget of lines that callers can cause.
    """

    def __init__(self, engine: Engine, steps: StepLog | None = None, lines: LogBudget | None = None) -> None:
        self._engine = engine
        self._steps = StepLog() if steps is None else steps
        self._views: dict[str, ModelView] = {}
        self._began: dict[str, float] = {}
        self._lines = LogBudget() if lines is None else lines

    async def run(self) -> None:
        """Log until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._steps.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        async with closing(self._engine.watch_model("")) as views:
            async for view in views:
                self._announce(view)

    def _announce(self, view: ModelView) -> None:
        before = self._views.get(view.model_name)
        self._views[view.model_name] = view
        if before is None or before.state is not view.state:
            self._announce_state(before, view)
        _announce_core(before, view)
        self._steps.note(view)

    def _announce_state(self, before: ModelView | None, view: ModelView) -> None:
        failure = view.failure if view.state is ModelState.FAILED else None
        if view.state is ModelState.RUNNING:
            self._announce_ready(view)
        elif failure is not None and _is_defect(before, failure):
            _log.error("model_failed", model=view.model_name, reason=failure.reason, failure=failure.message)
        elif (omitted := self._lines.line("model_state", party=view.model_name)) is not None:
            log = _log.bind(model=view.model_name, **omitted)
            if failure is not None:
                log.warning("model_failed", reason=failure.reason, failure=failure.message)
            else:
                log.info("model_state", state=view.state.value)
        if view.state is ModelState.STARTING:
            self._began[view.model_name] = view.state_time

    def _announce_ready(self, view: ModelView) -> None:
        began = self._began.pop(view.model_name, view.state_time)
        log = _log.bind(model=view.model_name)
        try:
            effective = self._engine.get_model(view.model_name).effective
        except NotFound:  # views arrive later: it was released since
            log.info("model_state", state=view.state.value)
            return
        if effective is not None:
            log.info("model_config", **_shown(effective))
            log.info(
                "model_ready",
                seconds=round(view.state_time - began, 1),
                kv_tokens=effective.kv_tokens,
                kv_bytes=effective.kv_bytes,
                prefix_cache=effective.config.enable_prefix_cache,
            )


def _is_defect(before: ModelView | None, failure: HeadraceError) -> bool:
    """Return False for a failed install of a bad model."""
    installing = before is None or before.state is ModelState.INSTALLING
    return not installing or failure.reason == "ENGINE_FAULT"


def _announce_core(before: ModelView | None, view: ModelView) -> None:
    """Log when a core is lost, and when the next one has taken over its sequences."""
    loss, known = view.core_loss, before.core_loss if before is not None else None
    if loss is not None and loss != known:
        _log.error("core_lost", model=view.model_name, epoch=loss.epoch, reason=loss.reason)
    elif loss is None and known is not None and view.state is ModelState.RUNNING:
        _log.info("core_restarted", model=view.model_name, epoch=view.core_epoch, reason=known.reason)


def _shown(effective: EffectiveConfig) -> dict[str, Any]:
    """Return the effective config as fields of an event; a chat template only as "given"."""
    values = {field.name: getattr(effective.config, field.name) for field in fields(effective.config)}
    values |= {"architecture": effective.architecture, "devices": effective.devices}
    values |= {"weight_bytes": effective.weight_bytes, "workspace_bytes": effective.workspace_bytes}
    values["chat_template"] = "given" if effective.config.chat_template else None
    return {name: value for name, value in values.items() if value not in (None, "", ())}
