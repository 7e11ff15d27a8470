"""Runners of any backend: plans for them, and how they are made ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace_engine.commands import CorePlan
from headrace_engine.config import ComputeUnit, ModelFormat
from headrace_engine.core.runner import Runner
from headrace_engine.model_types import ModelPhase


def plan_for(path: Path | str, **changes: Any) -> CorePlan:
    """A plan for one thread of the CPU."""
    plan = CorePlan(path=str(path), format=ModelFormat.AUTO, compute_unit=ComputeUnit.CPU, num_threads=1)
    return replace(plan, **changes)


def silent(phase: ModelPhase, done: int, total: int | None) -> None:
    """Progress that nobody wants to know."""


def allocated(runner: Runner) -> Runner:
    """A loaded runner with its pool, and with the host tier that its plan asks for."""
    sizes = runner.size()
    runner.allocate(sizes.num_blocks, sizes.num_host_blocks)
    return runner


def ready(runner: Runner) -> Runner:
    """The same, loaded first."""
    runner.load(silent)
    return allocated(runner)
