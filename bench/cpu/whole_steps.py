"""Whole steps of real models by the cpu backend's runner: one native call each, without a service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from headrace_engine.backends.cpu.runner import CpuRunner
from headrace_engine.config import ActivationQuant, ComputeUnit, ModelFormat, WeightQuant
from headrace_engine.core.runner import SequenceStep
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.sampling_params import SamplingParams

from bench.common.models import BenchModels
from bench.cpu.floors import SHAPES, Floor
from bench.cpu.loaded import loaded
from bench.kernels.limits import Limits
from bench.peers.ours import BATCH, LENGTH, OurForm, files_of
from bench.peers.workloads import Arrivals, random_ids

_BLOCK, _SECONDS, _LEAST = 16, 0.7, 5
_BLOCKS = LENGTH // _BLOCK
_GREEDY = SamplingParams(temperature=0.0)
_ENUMS = {"weight_quant": WeightQuant, "activation_quant": ActivationQuant}


@dataclass(frozen=True)
class WholeStep:
    """A batch of one kind.

    Attributes:
        sequences: number of sequences.
        start: context tokens of each.
        length: tokens of each in the step.
    """

    name: str
    sequences: int
    start: int
    length: int

    def steps(self) -> list[SequenceStep]:
        """Return the steps for the runner."""
        return [
            SequenceStep(
                token_ids=random_ids(self.length, number),
                start=self.start,
                blocks=range(number * _BLOCKS, (number + 1) * _BLOCKS),
                sampling=_GREEDY,
            )
            for number in range(self.sequences)
        ]


STEPS = (
    WholeStep("1 after 256", 1, 256, 1),
    WholeStep("16 after 256", 16, 256, 1),
    WholeStep("prompt of 512", 1, 0, 512),
)


@contextmanager
def runner(models: BenchModels, model: str, form: OurForm) -> Iterator[CpuRunner]:
    """Return a loaded model with a pool for BATCH sequences."""
    settings: dict[str, Any] = {
        name: _ENUMS.get(name, lambda value: value)(value) for name, value in form.settings.items()
    }
    plan = CorePlan(
        path=str(files_of(models, model, form)),
        format=ModelFormat.AUTO,
        compute_unit=ComputeUnit.CPU,
        max_batch=BATCH,
        max_length=LENGTH,
        max_prefill_tokens=512,
        block_size=_BLOCK,
        num_blocks=BATCH * _BLOCKS,
        **settings,
    )
    with loaded(plan) as ready:
        yield ready


def timed_steps(models: BenchModels, model: str, form: OurForm, limits: Limits) -> Iterator[dict[str, Any]]:
    """Measure each kind of step in one format: milliseconds, and the fraction of its bound."""
    with runner(models, model, form) as ready:
        floor = Floor(limits, ready.size().weight_bytes, form.form.bits, form.form.codes)
        for kind in STEPS:
            times = _times(ready, kind.steps())
            bound = floor.seconds(SHAPES[model], kind.sequences * kind.length, kind.sequences)
            yield {
                "model": model,
                "format": form.form.name,
                "step": kind.name,
                "ms": round(median(times) * 1e3, 3),
                "best_ms": round(min(times) * 1e3, 3),
                "floor_ms": round(bound * 1e3, 3),
                "fraction": round(bound / median(times), 3),
            }


def _times(ready: CpuRunner, steps: list[SequenceStep]) -> list[float]:
    ready.run(steps)
    times: list[float] = []
    while sum(times) < _SECONDS or len(times) < _LEAST:
        began = time.perf_counter()
        ready.run(steps)
        times.append(time.perf_counter() - began)
    return times


def alone(ready: CpuRunner, prompt: list[int], new: int) -> Arrivals:
    """Generate ids after a prompt of one sequence; return the time of each by `time.perf_counter`."""
    blocks, ids, start = range(_BLOCKS), list(prompt), 0
    arrivals: list[tuple[float, int]] = []
    while len(arrivals) < new:
        (drawn,) = ready.run([SequenceStep(ids, start, blocks, _GREEDY)])
        arrivals.append((time.perf_counter(), 1))
        assert drawn.token_id is not None
        ids, start = [drawn.token_id], start + len(ids)
    return arrivals
