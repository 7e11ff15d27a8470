"""A model on the cpu backend, loaded to be measured step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace_engine.backends.cpu.runner import CpuRunner
from headrace_engine.ipc.plans import CorePlan


@contextmanager
def loaded(plan: CorePlan) -> Iterator[CpuRunner]:
    """Return the runner of a plan, ready to compute; close it at the end."""
    runner = CpuRunner(plan)
    try:
        runner.load(lambda phase, done, total: None)
        runner.allocate(runner.size().num_blocks)
        yield runner
    finally:
        runner.close()
