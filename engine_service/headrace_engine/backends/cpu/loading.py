"""Loads a model and records its step: everything before the KV pool is sized."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from headrace_engine.backends.cpu.adapters import CpuAdapters
from headrace_engine.backends.cpu.nodes import choose_node_threads
from headrace_engine.backends.cpu.parallel.share import CpuShare
from headrace_engine.backends.cpu.processing import ProcessedRows
from headrace_engine.backends.cpu.prompt_logprobs import Scorer
from headrace_engine.backends.cpu.recording import Recorded, record_program
from headrace_engine.backends.cpu.threads import ComputeThreads, choose_threads
from headrace_engine.backends.cpu.weights.arena import Arena
from headrace_engine.backends.cpu.weights.choices import (
    check_plan,
    choose_activations,
    choose_dtype,
    choose_kv,
    choose_storage,
)
from headrace_engine.backends.cpu.weights.files import ArenaContents
from headrace_engine.backends.cpu.weights.numbers import PLAIN, Floats
from headrace_engine.backends.cpu.weights.packing import CpuWeights, Packer
from headrace_engine.backends.cpu.weights.storage import Storage
from headrace_engine.backends.host import memory_limit
from headrace_engine.backends.kv_size import CPU_SHARE, amount, positions_that_fit
from headrace_engine.backends.planned import open_planned
from headrace_engine.backends.processors import NO_PROCESSES, Process
from headrace_engine.backends.weight_cache import WeightCache, cache_folder, cache_key
from headrace_engine.config import ComputeDtype, ComputeUnit, ModelFormat, WeightQuant
from headrace_engine.core.runner import Progress
from headrace_engine.errors import OutOfMemory
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.model_types import ModelPhase
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.rope.tables import PositionTables, position_tables
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Cpu, PackedMatrix, Program, Value, choose_isa, load, weight_version

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder's weights and the program of its step.

    Attributes:
        spec: with the caller's rotary scaling applied.
        dtype: format of the weights that are not quantized.
        recorded: the step.
        scorer: computes prompt logprobs.
        processed: samples rows with logits processors; None: there are no processors.
        adapters: None: the plan has no room for any.
        shares_cpu: the threads are another model's, which closes them.
        packer: reads what other ranks hold; None: there is one rank.
    """

    unit: ComputeUnit
    cpu: Cpu
    spec: DecoderSpec
    dtype: ComputeDtype
    weights: CpuWeights
    positions: PositionTables
    recorded: Recorded
    scorer: Scorer
    processed: ProcessedRows | None = None
    adapters: CpuAdapters | None = None
    shares_cpu: bool = False
    packer: Packer | None = None

    @property
    def program(self) -> Program:
        """The program of the step."""
        return self.recorded.program

    @property
    def logits(self) -> Value:
        """The logits of the step."""
        return self.recorded.logits

    @property
    def embedding(self) -> PackedMatrix:
        """The table of embeddings."""
        table: PackedMatrix = self.weights.tensors["embed"]
        return table

    def embedding_row(self, token_id: int) -> Floats:
        """Return the embedding of an id, [hidden]."""
        if self.packer is None:
            return self.embedding.row(token_id)
        return self.packer.row("embed", token_id, self.embedding.matrix)

    @property
    def device_name(self) -> str:
        """Name of the device for display."""
        return f"CPU {self.cpu.isa.name.lower()}"

    @property
    def num_threads(self) -> int:
        """Number of compute threads."""
        return self.cpu.threads

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the largest step, besides weights and pool, with two parts of exchanges."""
        return sum(program.workspace_bytes for program in self.programs) + 2 * self.part_bytes

    @property
    def part_bytes(self) -> int:
        """Most bytes that a rank gives to an exchange; 0: there is one rank."""
        return max(program.part_bytes for program in self.programs)

    @property
    def programs(self) -> Iterator[Program]:
        """Yield all programs, the step's first."""
        yield self.program
        yield self.scorer.program
        if self.processed is not None:
            yield self.processed.program

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, of the tables of positions, and of all adapters that there is room for."""
        return self.weights.nbytes + self.positions.nbytes + (0 if self.adapters is None else self.adapters.nbytes)

    def close(self) -> None:
        """Free everything: programs first, since they run on the threads and read the arena."""
        for program in self.programs:
            program.close()
        self.weights.arena.close()
        if not self.shares_cpu:
            self.cpu.close()


def load_model(
    plan: CorePlan,
    progress: Progress,
    processes: Mapping[str, Process] = NO_PROCESSES,
    beside: LoadedModel | None = None,
    share: CpuShare | None = None,
) -> LoadedModel:
    """Choose threads, kernels and storage, put the weights into memory, and record the step.

    Args:
        processes: logits processors by name.
        beside: a model in the same memory, whose threads it shares; None: it starts threads of its own.
        share: what this rank holds of the weights; None: all.

    Raises:
        InvalidArgument: a value of the plan is not supported; names the field.
        BadModel: the files are not valid.
        OutOfMemory: the weights alone exceed the memory limit.
        NativeUnavailable: the native library is missing, or the machine cannot run it.
    """
    check_plan(plan)
    files = open_planned(plan)
    spec = files.spec
    positions = position_tables(spec, positions_that_fit(plan, spec, memory_limit(), CPU_SHARE))
    dtype = choose_dtype(plan, files)
    storage = choose_storage(plan, dtype)
    activations = choose_activations(plan, files, storage)
    taken = 0 if beside is None else beside.weight_bytes
    with ExitStack() as opened:
        cpu = opened.enter_context(_start_threads(plan)) if beside is None else beside.cpu
        packer = Packer(cpu, files, spec, storage, share)
        share = packer.share
        weights = _load_weights(packer, files, storage, cpu, progress, memory_limit() // plan.tensor_parallel - taken)
        opened.callback(weights.arena.close)
        kv = choose_kv(plan, dtype)
        adapters = CpuAdapters(plan, spec, share) if plan.lora_max_num else None
        recorded = record_program(cpu, plan, spec, weights.tensors, positions, kv, activations, adapters, share)
        scorer = Scorer(cpu, recorded.program.shape, spec, weights.tensors, activations, share)
        processed = ProcessedRows(cpu, recorded.program.shape, processes) if processes else None
        opened.pop_all()
    unit, shares = plan.compute_unit or ComputeUnit.CPU, beside is not None
    return LoadedModel(
        unit, cpu, spec, dtype, weights, positions, recorded, scorer, processed, adapters, shares,
        None if share is None else packer,
    )  # fmt: skip


def _start_threads(plan: CorePlan) -> Cpu:
    native = load("cpu")
    isa = choose_isa(native)
    threads = _choose_threads(plan)
    where = "unpinned" if threads.cpus is None else f"pinned to {', '.join(map(str, threads.cpus))}"
    _log.info("cpu_threads: %d, %s (%s), %s", threads.count, where, threads.reason, isa.name.lower())
    return Cpu(native, threads.count, cpus=threads.cpus, nodes=threads.nodes, isa=isa)


def _choose_threads(plan: CorePlan) -> ComputeThreads:
    if plan.compute_unit is ComputeUnit.CPU_NUMA:
        return choose_node_threads(plan.num_threads, plan.device_list)
    threads = choose_threads(plan.num_threads)
    # Each rank would pin its threads to the same processors.
    return threads if plan.tensor_parallel == 1 else replace(threads, cpus=None)


def _load_weights(
    packer: Packer, files: ModelFiles, storage: Storage, cpu: Cpu, progress: Progress, limit: int
) -> CpuWeights:
    """Put the weights into memory, of which they may take `limit` bytes."""
    capacity = packer.capacity()
    _check_memory(capacity * cpu.nodes, limit, storage)
    arena = Arena(cpu, capacity)
    try:
        progress(ModelPhase.LOADING, 0, files.weight_bytes)
        _fill(arena, packer, files, storage, cpu, progress)
        return CpuWeights(arena, {**dict(arena.matrices()), **packer.vectors()})
    except BaseException:
        arena.close()
        raise


def _fill(arena: Arena, packer: Packer, files: ModelFiles, storage: Storage, cpu: Cpu, progress: Progress) -> None:
    """Fill the arena from the cache if possible, else from the model's files."""
    if not _worth_caching(files, storage):
        packer.pack(arena, progress)
        return
    cache = WeightCache(cache_folder())
    version, share = weight_version(cpu.native), packer.share
    key = cache_key(files, storage, version if share is None else (version, share))
    if cache.read(key, ArenaContents(arena), cpu.threads):
        progress(ModelPhase.LOADING, files.weight_bytes, files.weight_bytes)
        return
    packer.pack(arena, progress)
    cache.write(key, ArenaContents(arena))


def _worth_caching(files: ModelFiles, storage: Storage) -> bool:
    """Return True if weights are stored as codes: numbers, and codes of our own files, are read as quickly there."""
    if storage.quant is not WeightQuant.NONE:
        return True
    if files.format is ModelFormat.HEADRACE:
        return False
    exact = storage.dtype is ComputeDtype.FLOAT32
    return not exact and any(info.stored.storage not in PLAIN for info in files.tensors.values())


def _check_memory(needed: int, limit: int, storage: Storage) -> None:
    """Check the memory limit before reading: the system kills a process that exceeds it, without an error."""
    if needed > limit:
        smaller = "set weight_quant, or take a smaller model"
        if storage.quant is WeightQuant.INT4:
            smaller = "take a smaller model"
        raise OutOfMemory(f"{amount(needed)} of weights do not fit, {amount(limit)} are free: {smaller}")
