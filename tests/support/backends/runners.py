"""Runners of any backend: their plans and their setup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace_engine.config import ComputeUnit, ModelFormat
from headrace_engine.core.runner import Runner
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.model_types import ModelPhase


def plan_for(path: Path | str, **changes: Any) -> CorePlan:
    """Return a plan for one CPU thread."""
    plan = CorePlan(path=str(path), format=ModelFormat.AUTO, compute_unit=ComputeUnit.CPU, num_threads=1)
    return replace(plan, **changes)


def silent(phase: ModelPhase, done: int, total: int | None) -> None:
    """Ignore progress."""


def allocated(runner: Runner) -> Runner:
    """Allocate a loaded runner's pool, and the host tier that its plan requests."""
    sizes = runner.size()
    runner.allocate(sizes.num_blocks, sizes.num_host_blocks)
    return runner


def ready(runner: Runner) -> Runner:
    """Load the runner, then allocate as above."""
    runner.load(silent)
    return allocated(runner)
