"""Runs a decoder on a CUDA device: prompts as they come, steps of one token a sequence as captured graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from headrace_engine.backends.cuda.device import CudaDevice, Device
from headrace_engine.backends.cuda.flash import FLASH
from headrace_engine.backends.cuda.flights import overlaps
from headrace_engine.backends.cuda.host_blocks import HostBlocks
from headrace_engine.backends.cuda.lacking import LARGEST_STEP, POOL, told_of_memory
from headrace_engine.backends.cuda.loading import CudaModel, load_model
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.backends.host import default_memory_ratio, memory_limit
from headrace_engine.backends.kv_size import CUDA_RATIO, Memory, host_bytes, length_limit, size_pool
from headrace_engine.backends.processors import NO_PROCESSES, Process, device_sources, python_processes
from headrace_engine.backends.torch.processing import RowProcessors
from headrace_engine.backends.torch.user_kernels import compiled
from headrace_engine.backends.torch.workspace import largest_step
from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.core.flight import Flight, Landed
from headrace_engine.core.runner import BlockCopies, Progress, Runner, RunnerSizes, Sampled, SequenceStep
from headrace_engine.errors import Internal
from headrace_engine.messages import CorePlan

_SPARE = 1.1
"""Of what the largest step took when it was measured: what is kept for it."""


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> CudaRunner:
    """The runner for a plan whose backend is "cuda".

    Raises:
        InvalidArgument: the device cannot be used; says what to do.
        NativeUnavailable: there is no library with the kernels.
    """
    return CudaRunner(plan, lambda: CudaDevice(plan.device_list[0] if plan.device_list else 0), processes)


class CudaRunner(Runner):
    """Runs a decoder in bfloat16 on one device.

    Args:
        plan: the model, and every size that the caller chose.
        open_device: gives the device, when the model is loaded.
        processes: the plan's logits processors that have no file, by name.
    """

    def __init__(
        self, plan: CorePlan, open_device: Callable[[], Device], processes: Mapping[str, Process] = NO_PROCESSES
    ) -> None:
        self._plan = plan
        self._open_device = open_device
        self._processes = processes
        self._processors: RowProcessors | None = None
        self._model: CudaModel | None = None
        self._steps: StepRunner | None = None
        self._overlaps = True
        self._host: HostBlocks | None = None

    def load(self, progress: Progress) -> None:
        """See Runner.

        Raises:
            InvalidArgument: the library has no code for the card, or HEADRACE_OVERLAP is neither 0 nor 1.
            OutOfMemory: the weights alone exceed the device's memory.
        """
        self._overlaps = overlaps(os.environ)
        files, device = self._plan.logits_processors, self._open_device()
        processes = python_processes(files, self._processes)
        kernels = compiled(device_sources(files), device.kernel)
        self._processors = RowProcessors(processes, kernels) if files else None
        self._model = load_model(self._plan, device, progress)

    def size(self) -> RunnerSizes:
        """See Runner. The largest step, and the largest that will be captured, are run to see what they take."""
        model, plan = self._loaded, self._plan
        block_bytes = model.block_bytes * model.spec.num_layers
        with told_of_memory(model.device, LARGEST_STEP):
            workspace = self._workspace(model)
        total, free = model.device.memory()
        host = host_bytes(plan, block_bytes, memory_limit())
        memory = Memory(total, model.weight_bytes, workspace, free - workspace - block_bytes)
        ratio = plan.memory_ratio or default_memory_ratio() or CUDA_RATIO
        pool = size_pool(plan, model.spec, memory, block_bytes, ratio, None)
        return RunnerSizes(
            devices=(model.device.name,),
            dtype=ComputeDtype.BFLOAT16,
            compute_unit=ComputeUnit.CUDA,
            num_threads=model.num_threads,
            max_length=pool.max_length,
            num_blocks=pool.num_blocks,
            weight_bytes=model.weight_bytes,
            workspace_bytes=workspace,
            kv_bytes=pool.bytes,
            num_host_blocks=plan.num_host_blocks,
            host_kv_bytes=host,
        )

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Runner. Captures the steps of one token a sequence, too."""
        with told_of_memory(self._loaded.device, POOL):
            pool = self._loaded.pool(num_blocks)
            self._steps = StepRunner(self._loaded, pool, self._processors)
            self._steps.capture()
        self._host = HostBlocks(self._loaded.device, pool, num_host_blocks) if num_host_blocks else None

    def copy_blocks(self, copies: BlockCopies) -> None:
        """See Runner."""
        if self._host is None:
            raise Internal("copy_blocks() without host blocks")
        self._host.copy(copies)

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Runner."""
        return self.launch(steps).wait()

    def launch(self, steps: Sequence[SequenceStep]) -> Flight:
        """See Runner."""
        if self._steps is None:
            raise Internal("run() before allocate()")
        if not steps:
            return Landed([])
        flight = self._steps.launch(steps)
        return flight if self._overlaps else Landed(flight.wait())

    def close(self) -> None:
        """See Runner. Closing twice is allowed."""
        self._steps = self._host = self._model = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @property
    def _loaded(self) -> CudaModel:
        if self._model is None:
            raise Internal("the model is not loaded")
        return self._model

    def _workspace(self, model: CudaModel) -> int:
        steps = StepRunner(model, model.pool(1))
        mixed = largest_step(self._plan, length_limit(self._plan, model.spec))
        taken = [model.device.taken(partial(steps.run, each)) for each in (mixed, [mixed[-1]] * len(mixed))]
        if FLASH in model.plain:  # Which attends where a prompt begins, and the mixed step's does not.
            begun = [replace(mixed[0], start=0), *mixed[1:]]
            taken[0] = max(taken[0], model.device.taken(partial(steps.run, begun)))
        return int(_SPARE * sum(taken)) + steps.staged_bytes + model.products.nbytes
