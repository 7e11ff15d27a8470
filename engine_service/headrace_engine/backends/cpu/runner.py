"""The runner of the cpu backend: one native call per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace_engine.backends.adapters import required
from headrace_engine.backends.candidates import candidates_of
from headrace_engine.backends.cpu.batch import CpuBatch
from headrace_engine.backends.cpu.host_blocks import Blocks, HostBlocks, blocks_of
from headrace_engine.backends.cpu.loading import LoadedModel, load_model
from headrace_engine.backends.cpu.processing import unprocessed
from headrace_engine.backends.extra_outputs import collect_extras, wants_extras
from headrace_engine.backends.host import memory_limit
from headrace_engine.backends.kv_size import Memory as MemoryBudget
from headrace_engine.backends.kv_size import host_bytes
from headrace_engine.backends.model_runner import ModelRunner, PoolBudget
from headrace_engine.backends.processors import (
    NO_PROCESSES,
    Process,
    idle_device_sources,
    is_processed,
    python_processes,
)
from headrace_engine.core.runner import Progress, Sampled, SequenceStep
from headrace_engine.errors import Internal
from headrace_engine.ipc.plans import AdapterPlan, CorePlan
from headrace_engine.native import Memory


def make_runner(plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> CpuRunner:
    """Return the runner for a plan whose backend is "cpu"; it opens nothing before `load`."""
    return CpuRunner(plan, processes)


class CpuRunner(ModelRunner[LoadedModel]):
    """Runs a decoder with the native library.

    With weights in FLOAT32 or FLOAT16, the logits of a sequence are bit-identical in any batch and with any chunking;
    in other formats they are equal within rounding.

    Args:
        plan: the model and the sizes chosen by the caller.
        processes: the plan's logits processors without a file, by name.
    """

    takes_all_at_once = True

    def __init__(self, plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        super().__init__(plan, processes)
        self._memory: list[Memory] = []
        self._batch: CpuBatch | None = None
        self._draft: CpuRunner | None = None
        self._pool: Blocks | None = None

    def load(self, progress: Progress) -> None:
        """See Runner.

        Raises:
            OutOfMemory: the weights alone exceed the memory limit.
            NativeUnavailable: the native library is missing, or the machine cannot run it.
        """
        files = self._plan.logits_processors
        processes = self._processes = python_processes(files, self._processes)
        self.idle_processors = idle_device_sources(files, "the cpu backend")
        self._model = self._load_model(progress, processes)
        if self._plan.draft is not None:
            self._draft = CpuRunner(self._plan.of_draft(self._plan.draft))
            self._draft._model = load_model(self._draft._plan, progress, beside=self._model)

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Runner."""
        program, processed = self._loaded.program, self._loaded.processed
        pool = self._allocated(num_blocks)
        program.bind(pool, num_blocks)
        self._loaded.scorer.bind(pool, num_blocks)
        if processed is not None:
            processed.bind(pool, num_blocks)
        if num_host_blocks:
            self._host = HostBlocks(program, pool, num_blocks, self._allocated(num_host_blocks))
        self._pool = blocks_of(program, pool, num_blocks)
        self._batch = CpuBatch(program.shape)
        if self._draft is not None:
            # Its pool has the same block numbers: who owns a block owns it in both.
            self._draft.allocate(num_blocks)

    def draft(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Runner."""
        return super().draft(steps) if self._draft is None else self._draft.run(steps)

    def read_adapter(self, plan: AdapterPlan) -> Callable[[], None]:
        """See Runner."""
        return required(self._loaded.adapters).read(plan)

    @property
    def progress(self) -> int:
        """See Runner."""
        return 0 if self._model is None else self._model.cpu.progress

    def run(self, steps: Sequence[SequenceStep]) -> list[Sampled]:
        """See Runner."""
        if self._batch is None:
            raise Internal("run() before allocate()")
        if not steps:
            return []
        run = self._run_processed if is_processed(steps) else self._run
        sampled = run(self._batch, steps)
        # Read now: the next step overwrites the structs that the results are read from.
        return self._collect_extras(steps, sampled) if wants_extras(steps) else list(sampled)

    def close(self) -> None:
        """See Runner. Closing twice is allowed."""
        if self._draft is not None:
            self._draft.close()  # Before the threads that it shares.
            self._draft = None
        # The host tier and the blocks are views of memory that is freed below.
        self._batch = self._host = self._pool = None
        # Programs hold addresses in the pool: close them before its memory is freed.
        if self._model is not None:
            self._model.close()
            self._model = None
        while self._memory:
            self._memory.pop().close()

    def _copy_within(self, pairs: Sequence[tuple[int, int]]) -> None:
        """See ModelRunner."""
        assert self._pool is not None, "blocks are copied after allocate()"
        for source, target in pairs:
            self._pool[:, target] = self._pool[:, source]

    def _pool_budget(self) -> PoolBudget:
        """See ModelRunner. The recorded step gives the size of the workspace."""
        models = [self._loaded, *([] if self._draft is None else [self._draft._loaded])]
        weights = sum(model.weight_bytes for model in models)
        workspace = sum(model.workspace_bytes for model in models)
        # Ranks share the memory of their host.
        total = memory_limit() // self._plan.tensor_parallel
        block_bytes = sum(model.program.block_bytes for model in models)
        free = total - workspace - weights
        host = host_bytes(self._plan, self._loaded.program.block_bytes, free)
        return PoolBudget(MemoryBudget(total, weights, workspace, free - host, host), block_bytes, host, None)

    def _load_model(self, progress: Progress, processes: Mapping[str, Process]) -> LoadedModel:
        """Load what this runner computes."""
        return load_model(self._plan, progress, processes)

    def _run(self, batch: CpuBatch, steps: Sequence[SequenceStep]) -> Iterable[Sampled]:
        batch.fill(steps)
        self._loaded.program.run(batch.struct)
        return batch.sampled(steps)

    def _run_processed(self, batch: CpuBatch, steps: Sequence[SequenceStep]) -> Iterable[Sampled]:
        """Run the step in one native call, then find candidates, and sample rows with logits processors again."""
        model = self._loaded
        sampled = list(self._run(batch, unprocessed(steps)))
        # A view of the step's workspace; sampling again works in one of its own, and leaves it as it is.
        logits = model.program.value(model.logits, sum(step.sampling is not None for step in steps))
        for number, step in enumerate(step for step in steps if step.sampling is not None):
            if step.candidates and not sampled[number].error:
                found = candidates_of(logits[number], step, self._processes)
                sampled[number] = replace(found, top=sampled[number].top)
        return sampled if model.processed is None else model.processed.sample(steps, sampled, logits)

    def _collect_extras(self, steps: Sequence[SequenceStep], sampled: Iterable[Sampled]) -> list[Sampled]:
        """Collect extra outputs from the values that the step left in the workspace."""
        model = self._loaded
        program, recorded, scorer = model.program, model.recorded, model.scorer
        states = program.value(recorded.states, sum(len(step.token_ids) for step in steps))
        selected = program.value(recorded.selected, sum(step.sampling is not None for step in steps))

        def vectors(number: int, token_id: int) -> bytes:
            embedding: bytes = model.embedding_row(token_id).tobytes()
            return embedding + bytes(selected[number].tobytes())

        def pool(first: int, last: int) -> bytes:
            return bytes(states[first:last].sum(axis=0, dtype=np.float64).tobytes())

        return collect_extras(
            steps, sampled, lambda rows, forced: scorer.run(states[rows], forced), scorer.rows, vectors, pool
        )

    def _allocated(self, blocks: int) -> Memory:
        model = self._loaded
        self._memory.append(Memory(model.cpu.native, blocks * model.program.block_bytes))
        return self._memory[-1]
