"""Base of all runners: the plan, the loaded model, and the host tier."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace_engine.backends.kv_size import Memory, size_pool
from headrace_engine.backends.processors import NO_PROCESSES, Process
from headrace_engine.config import ComputeDtype, ComputeUnit
from headrace_engine.core.runner import BlockCopies, Runner
from headrace_engine.environment import memory_ratio
from headrace_engine.errors import Internal
from headrace_engine.ipc.messages import RunnerSizes
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.spec import DecoderSpec


class DeviceModel(Protocol):
    """A decoder's weights on a device."""

    @property
    def spec(self) -> DecoderSpec:
        """The decoder, with the caller's rotary scaling applied."""

    @property
    def unit(self) -> ComputeUnit:
        """Kind of the device."""

    @property
    def device_name(self) -> str:
        """Name of the device for display."""

    @property
    def dtype(self) -> ComputeDtype:
        """Format of the weights that are not quantized."""

    @property
    def num_threads(self) -> int:
        """Number of compute threads on the host."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device, and of the tables of positions."""


class HostTier(Protocol):
    """Blocks in host memory."""

    def copy(self, copies: BlockCopies) -> None:
        """See Runner.copy_blocks."""


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """Memory available for keys and values.

    Attributes:
        memory: memory of the device.
        block_bytes: keys and values of one block in all layers.
        host_bytes: host memory used by the host tier.
        ratio: default share of the memory for weights, workspace and pool; None: max_batch decides.
    """

    memory: Memory
    block_bytes: int
    host_bytes: int
    ratio: float | None


Model = TypeVar("Model", bound=DeviceModel)


class ModelRunner(Runner, Generic[Model]):
    """Runs a model on one device.

    Args:
        plan: the model and the sizes chosen by the caller.
        processes: the plan's logits processors without a file, by name.
    """

    def __init__(self, plan: CorePlan, processes: Mapping[str, Process] = NO_PROCESSES) -> None:
        self._plan = plan
        self._processes = processes
        self._model: Model | None = None
        self._host: HostTier | None = None

    def size(self) -> RunnerSizes:
        """See Runner."""
        model, plan, budget = self._loaded, self._plan, self._pool_budget()
        ratio = plan.memory_ratio or memory_ratio() or budget.ratio
        pool = size_pool(plan, model.spec, budget.memory, budget.block_bytes, ratio)
        return RunnerSizes(
            devices=(model.device_name,),
            dtype=model.dtype,
            compute_unit=model.unit,
            num_threads=model.num_threads,
            max_length=pool.max_length,
            num_blocks=pool.num_blocks,
            weight_bytes=budget.memory.weights,
            workspace_bytes=budget.memory.workspace,
            kv_bytes=pool.bytes,
            num_host_blocks=plan.num_host_blocks,
            host_kv_bytes=budget.host_bytes,
        )

    @abstractmethod
    def _pool_budget(self) -> PoolBudget:
        """Return the memory that the weights and the largest step leave.

        Raises:
            OutOfMemory: the host tier does not fit.
        """

    def copy_blocks(self, copies: BlockCopies) -> None:
        """See Runner."""
        if copies.within:
            # Old contents leave before a block is overwritten; those from the host come last, and stay.
            self._copy_host_blocks(BlockCopies(to_host=copies.to_host))
            self._copy_within(copies.within)
            copies = BlockCopies(to_pool=copies.to_pool)
        self._copy_host_blocks(copies)

    def _copy_host_blocks(self, copies: BlockCopies) -> None:
        if not copies:
            return
        if self._host is None:
            raise Internal("copy_blocks() without host blocks")
        self._host.copy(copies)

    @abstractmethod
    def _copy_within(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks within the pool, one after the other."""

    @property
    def _loaded(self) -> Model:
        if self._model is None:
            raise Internal("the model is not loaded")
        return self._model
