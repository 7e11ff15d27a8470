"""Runs a decoder on a CUDA device: steps of few rows as captured graphs, all others op by op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain

import torch

from headrace_engine.backends.adapters import required
from headrace_engine.backends.cuda.device.device import CudaDevice, Device
from headrace_engine.backends.cuda.device.errors import LARGEST_STEP, POOL, explain_out_of_memory
from headrace_engine.backends.cuda.device.flash import FLASH
from headrace_engine.backends.cuda.device.host_blocks import HostBlocks
from headrace_engine.backends.cuda.device.pool import KvPool
from headrace_engine.backends.cuda.loading import CudaModel, load_model
from headrace_engine.backends.cuda.steps import StepRunner
from headrace_engine.backends.host import memory_limit
from headrace_engine.backends.kv_size import CUDA_RATIO, Memory, host_bytes
from headrace_engine.backends.model_runner import ModelRunner, PoolBudget
from headrace_engine.backends.processors import NO_PROCESSES, Process, device_sources, python_processes
from headrace_engine.backends.torch.sampling.processing import RowProcessors
from headrace_engine.backends.torch.sampling.user_kernels import compiled
from headrace_engine.backends.torch.workspace import largest_step
from headrace_engine.core.in_flight import FinishedStep, InFlightStep
from headrace_engine.core.runner import Progress, Sampled, SequenceStep
from headrace_engine.environment import overlaps
from headrace_engine.errors import Internal
from headrace_engine.ipc.plans import AdapterPlan, CorePlan

_SPARE = 1.1
"""Memory reserved for the largest step, relative to its measured size."""


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> CudaRunner:
    """Return the runner for a plan whose backend is "cuda".

    Raises:
        InvalidArgument: the device cannot be used; the message says what to do.
        NativeUnavailable: the library with the kernels cannot be loaded.
    """
    return CudaRunner(plan, lambda: CudaDevice(plan.device_list[0] if plan.device_list else 0), processes)


class CudaRunner(ModelRunner[CudaModel]):
    """Runs a decoder in bfloat16 on one device.

    Args:
        plan: the model and the sizes chosen by the caller.
        open_device: opens the device when the model is loaded.
        processes: the plan's logits processors without a file, by name.
    """

    def __init__(
        self, plan: CorePlan, open_device: Callable[[], Device], processes: Mapping[str, Process] = NO_PROCESSES
    ) -> None:
        super().__init__(plan, processes)
        self._open_device = open_device
        self._processors: RowProcessors | None = None
        self._steps: StepRunner | None = None
        self._overlaps = True
        self._pool: KvPool | None = None
        self._host_blocks: HostBlocks | None = None

    def load(self, progress: Progress) -> None:
        """See Runner.

        Raises:
            InvalidArgument: the library has no code for the card, or HEADRACE_OVERLAP is neither 0 nor 1.
            OutOfMemory: the weights alone exceed the device's memory.
        """
        self._overlaps = overlaps()
        files, device = self._plan.logits_processors, self._open_device()
        processes = python_processes(files, self._processes)
        kernels = compiled(device_sources(files), device.kernel)
        self._processors = RowProcessors(processes, kernels) if files else None
        self._model = load_model(self._plan, device, progress)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Runner. Also captures the steps of few rows."""
        with explain_out_of_memory(self._loaded.device, POOL):
            self._pool = pool = self._loaded.pool(num_blocks)
            self._steps = StepRunner(self._loaded, pool, self._processors)
            self._steps.capture()
        self._host_blocks = HostBlocks(self._loaded.device, pool, num_host_blocks) if num_host_blocks else None
        self._host = self._host_blocks

    def read_adapter(self, plan: AdapterPlan) -> Callable[[], None]:
        """See Runner."""
        return required(self._loaded.adapters).read(plan)

    @property
    def progress(self) -> int:
        """See Runner."""
        return 0 if self._steps is None else self._steps.progress

    def interrupt(self) -> None:
        """See Runner."""
        if self._steps is not None:
            self._steps.interrupt()

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Runner."""
        return self.launch(steps).wait()

    def launch(self, steps: Sequence[SequenceStep]) -> InFlightStep:
        """See Runner."""
        if self._steps is None:
            raise Internal("run() before allocate()")
        if not steps:
            return FinishedStep([])
        self._settle(chain.from_iterable(step.blocks for step in steps))
        launched = self._steps.launch(steps)
        return launched if self._overlaps else FinishedStep(launched.wait())

    def close(self) -> None:
        """See Runner. Closing twice is allowed."""
        # The core has waited for its last step; only copies beside steps may still work on their memory.
        if self._host_blocks is not None:
            with suppress(RuntimeError):  # A device that has failed copies no more.
                self._host_blocks.wait()
        self._steps = self._host = self._host_blocks = self._model = self._pool = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _copy_within(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ModelRunner. Enqueued on the device."""
        assert self._pool is not None, "blocks are copied after allocate()"
        self._settle(chain.from_iterable(pairs))
        for source, target in pairs:
            self._pool.blocks[target].copy_(self._pool.blocks[source])

    def _settle(self, blocks: Iterable[int]) -> None:
        """Have what is enqueued from now on wait for copies from or to blocks."""
        if self._host_blocks is not None:
            self._host_blocks.settle(blocks)

    def _pool_budget(self) -> PoolBudget:
        """See ModelRunner. Runs the largest step, and the largest captured ones, to measure their memory."""
        model = self._loaded
        block_bytes = model.block_bytes * model.spec.num_layers
        with explain_out_of_memory(model.device, LARGEST_STEP):
            workspace = self._workspace(model)
        total, free = model.device.memory()
        host = host_bytes(self._plan, block_bytes, memory_limit())
        memory = Memory(total, model.weight_bytes, workspace, free - workspace - block_bytes)
        return PoolBudget(memory, block_bytes, host, CUDA_RATIO)

    def _workspace(self, model: CudaModel) -> int:
        # With a pool and buffers of its own, which end with this call: the real pool has no size yet.
        steps = StepRunner(model, model.pool(1))
        mixed = largest_step(self._plan, model.positions.length)
        taken, decoded = (model.device.taken(partial(steps.run, each)) for each in (mixed, [mixed[-1]] * len(mixed)))
        # One captured step runs at a time, so that all of them share the memory of the largest.
        captured = max(decoded, model.device.taken(steps.compute_padding) if steps.captures_prompts else 0)
        if FLASH in model.plain:  # Flash attention runs only for prompts that begin, unlike the mixed step's.
            begun = [replace(mixed[0], start=0), *mixed[1:]]
            taken = max(taken, model.device.taken(partial(steps.run, begun)))
        paged = 0 if model.paged is None else model.paged.nbytes
        return int(_SPARE * (taken + captured)) + steps.staged_bytes + model.products.nbytes + paged
