"""The runner of the torch backend: slow and simple, the oracle for all other backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from headrace_engine.backends.adapters import required
from headrace_engine.backends.extra_outputs import wants_extras
from headrace_engine.backends.host import memory_limit
from headrace_engine.backends.kv_size import CUDA_RATIO, Memory, host_bytes
from headrace_engine.backends.model_runner import ModelRunner, PoolBudget
from headrace_engine.backends.processors import NO_PROCESSES, Process, python_processes
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.backends.torch.host_blocks import HostBlocks, staged_bytes
from headrace_engine.backends.torch.loading import LoadedModel, device_memory, load_model, positions_on
from headrace_engine.backends.torch.sampling.extra_outputs import collect_from_states
from headrace_engine.backends.torch.sampling.processing import RowProcessors
from headrace_engine.backends.torch.sampling.sampler import ProcessRow, sample
from headrace_engine.backends.torch.sampling.user_kernels import device_kernels
from headrace_engine.backends.torch.workspace import largest_step, measured_bytes, workspace_bytes
from headrace_engine.core.runner import Progress, Sampled, SequenceStep
from headrace_engine.errors import Internal
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.ops import Batch, Extent


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> TorchRunner:
    """Return the runner for a plan whose backend is "torch"; it opens nothing before `load`."""
    return TorchRunner(plan, processes)


class TorchRunner(ModelRunner[LoadedModel]):
    """Runs a decoder with torch on one CPU or CUDA device.

    In float32, the logits of a sequence are bit-identical in any batch and with any chunking; in 16-bit formats they
    are equal within rounding.

    Args:
        plan: the model and the sizes chosen by the caller.
        processes: the plan's logits processors without a file, by name.
    """

    def __init__(self, plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        super().__init__(plan, processes)
        self._processors: RowProcessors | None = None
        self._decoder: Decoder[Tensor, TorchBatch] | None = None
        self._pool: Sequence[Tensor] = ()

    def load(self, progress: Progress) -> None:
        """See Runner.

        Raises:
            OutOfMemory: the weights alone exceed the memory limit.
        """
        files = self._plan.logits_processors
        processes = python_processes(files, self._processes)
        self._model = self._load_model(progress)
        kernels, self.idle_processors = device_kernels(files, self._model.device)
        self._processors = RowProcessors(processes, kernels) if files else None

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Runner."""
        pool = self._loaded.pool(num_blocks, self._plan.block_size)
        self._decoder = self._loaded.decoder(pool)
        self._pool = pool.tensors
        self._host = HostBlocks(pool.tensors, num_host_blocks) if num_host_blocks else None

    def read_adapter(self, plan: AdapterPlan) -> Callable[[], None]:
        """See Runner."""
        return required(self._loaded.adapters).read(plan)

    @property
    def progress(self) -> int:
        """See Runner."""
        return 0 if self._decoder is None else self._decoder.done

    def interrupt(self) -> None:
        """See Runner."""
        if self._decoder is not None:
            self._decoder.interrupt()

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Runner."""
        if self._decoder is None:
            raise Internal("run() before allocate()")
        return run_steps(self._decoder, steps, self._processors, self._embedding())

    def close(self) -> None:
        """See Runner. Closing twice is allowed."""
        self._decoder = self._host = self._model = None
        self._pool = ()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _copy_within(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ModelRunner."""
        for source, target in pairs:
            for tensor in self._pool:
                tensor[target].copy_(tensor[source])

    def _pool_budget(self) -> PoolBudget:
        """See ModelRunner. On CUDA, run the largest step; on a CPU, bound its memory from the shapes."""
        model, plan = self._loaded, self._plan
        block_bytes = plan.block_size * model.token_bytes
        workspace = self._workspace(model) + staged_bytes(model.device, block_bytes, plan.num_host_blocks)
        total, free = self._device_memory()
        if model.device.type == "cuda":  # The weights are already deducted from the free memory.
            host = host_bytes(plan, block_bytes, memory_limit())
            memory = Memory(total, model.weight_bytes, workspace, free - workspace)
            return PoolBudget(memory, block_bytes, host, CUDA_RATIO)
        free -= workspace + model.weight_bytes
        host = host_bytes(plan, block_bytes, free)
        return PoolBudget(Memory(total, model.weight_bytes, workspace, free - host, host), block_bytes, host, None)

    def _load_model(self, progress: Progress) -> LoadedModel:
        return load_model(self._plan, progress)

    def _embedding(self) -> Callable[[int], Tensor] | None:
        """Return what looks up the embedding of an id, [hidden]; None: the decoder has the table."""
        return None

    def _device_memory(self) -> tuple[int, int]:
        """Return total and free bytes of the device that this model may take."""
        return device_memory(self._loaded.device)

    def _workspace(self, model: LoadedModel) -> int:
        if model.device.type == "cpu":
            return workspace_bytes(model.spec, self._plan, model.itemsize)
        decoder = model.decoder(model.pool(1, self._plan.block_size))
        steps = largest_step(self._plan, positions_on(self._plan, model.spec, model.device))
        taken = measured_bytes(model.device, lambda: run_steps(decoder, steps))
        torch.cuda.empty_cache()
        return taken


def run_steps(
    decoder: Decoder[Tensor, TorchBatch],
    steps: Sequence[SequenceStep],
    process: ProcessRow | None = None,
    embedding: Callable[[int], Tensor] | None = None,
) -> list[Sampled]:
    """Compute all steps as one batch, and sample a token for each that has `sampling`.

    Args:
        embedding: looks up the embedding of an id, [hidden]; None: in the decoder's table.
    """
    if not steps:
        return []
    batch = make_batch(steps)
    sampling_steps = [step for step in steps if step.sampling is not None]
    with torch.inference_mode():
        if not wants_extras(steps):
            return sample(decoder.forward(batch), sampling_steps, process)
        states = decoder.states(batch)
        selected = states[batch.logits_rows]
        sampled = sample(decoder.logits(selected), sampling_steps, process)
        embedding = embedding or decoder.embedding.__getitem__
        return collect_from_states(decoder, steps, sampled, states, selected, embedding)


def make_batch(steps: Sequence[SequenceStep]) -> Batch:
    """Return the rows of the steps in order; the last row of each with `sampling` needs logits."""
    extents: list[Extent] = []
    for step in steps:
        row = extents[-1].row + extents[-1].length if extents else 0
        extents.append(Extent(row, len(step.token_ids), step.start, step.blocks, step.adapter))
    token_ids = [token_id for step in steps for token_id in step.token_ids]
    pairs = zip(extents, steps, strict=True)
    logits_rows = [extent.row + extent.length - 1 for extent, step in pairs if step.sampling is not None]
    return Batch(token_ids, extents, logits_rows)
