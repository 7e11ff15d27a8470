"""Loads a model onto its device: everything before the KV pool is sized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_engine.backend_choices import check_choices
from headrace_engine.backends.host import compute_threads, memory_limit
from headrace_engine.backends.kv_size import CPU_SHARE, CUDA_RATIO, amount, positions_that_fit
from headrace_engine.backends.planned import open_planned
from headrace_engine.backends.torch.adapters import TorchAdapters
from headrace_engine.backends.torch.batch import TorchBatch
from headrace_engine.backends.torch.device import TORCH_DTYPES, choose_device, choose_dtype
from headrace_engine.backends.torch.kv_pool import KvPool, token_bytes
from headrace_engine.backends.torch.ops import TorchOps
from headrace_engine.backends.torch.rope import Positions
from headrace_engine.config import ComputeDtype, ComputeUnit, KvCacheMode
from headrace_engine.core.runner import Progress
from headrace_engine.errors import OutOfMemory
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.decoder import Decoder
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.weights import load_weights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder's weights on a device, and the formats that it computes in.

    Attributes:
        spec: with the caller's rotary scaling applied.
        weights: tensors by canonical name.
        positions: tables of all positions that the plan allows.
        num_threads: number of compute threads on the host.
        kv_mode: storage of keys and values.
        adapters: None: the plan has no room for any.
    """

    unit: ComputeUnit
    device: torch.device
    dtype: ComputeDtype
    spec: DecoderSpec
    weights: Mapping[str, Tensor]
    positions: Positions
    num_threads: int
    kv_mode: KvCacheMode = KvCacheMode.DEFAULT
    adapters: TorchAdapters | None = None

    @property
    def device_name(self) -> str:
        """Name of the device for display."""
        return str(self.device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device, and of the tables of positions."""
        adapters = 0 if self.adapters is None else self.adapters.nbytes
        return sum(tensor.nbytes for tensor in self.weights.values()) + self.positions.nbytes + adapters

    @property
    def itemsize(self) -> int:
        """Bytes of one weight or activation."""
        return TORCH_DTYPES[self.dtype].itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the KV pool."""
        return token_bytes(self.spec, self.kv_mode, self.itemsize)

    def pool(self, num_blocks: int, block_size: int) -> KvPool:
        """Return a new KV pool on the device, zeroed."""
        return KvPool(self.spec, num_blocks, block_size, self.kv_mode, TORCH_DTYPES[self.dtype], self.device)

    def decoder(self, pool: KvPool) -> Decoder[Tensor, TorchBatch]:
        """Return a decoder over a pool."""
        ops = TorchOps(self.spec, self.positions, pool, self.device, self.adapters)
        return Decoder(self.spec, ops, self.weights, adapts=self.adapters is not None)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose weights are not loaded yet, and what was chosen for it; attributes as of LoadedModel."""

    unit: ComputeUnit
    device: torch.device
    dtype: ComputeDtype
    files: ModelFiles
    positions: Positions
    num_threads: int


def load_model(plan: CorePlan, progress: Progress) -> LoadedModel:
    """Choose device and number format, and load the weights.

    Raises:
        InvalidArgument: a value of the plan is not supported; names the field.
        BadModel: the files are not valid.
        OutOfMemory: the weights alone exceed the memory limit.
    """
    opened = open_on_device(plan)
    unit, device, dtype, spec = opened.unit, opened.device, opened.dtype, opened.files.spec
    weights = load_weights(opened.files, TORCH_DTYPES[dtype], device, progress)
    adapters = TorchAdapters(plan, spec, TORCH_DTYPES[dtype], device) if plan.lora_max_num else None
    rest = (opened.positions, opened.num_threads, plan.kv_cache_mode, adapters)
    return LoadedModel(unit, device, dtype, spec, weights, *rest)


def open_on_device(plan: CorePlan, rank: int = 0) -> OpenedModel:
    """Choose device and number format, for all of the weights or a rank's share. Raises as `load_model`."""
    check_choices(plan, "torch")
    unit, device = choose_device(plan, rank)
    files = open_planned(plan)
    positions = Positions(files.spec, positions_on(plan, files.spec, device), device)
    dtype = choose_dtype(plan, files, unit)
    _check_memory(files, dtype, device, 1 if unit is ComputeUnit.CPU else plan.tensor_parallel)
    num_threads = plan.num_threads or compute_threads()
    torch.set_num_threads(num_threads)
    return OpenedModel(unit, device, dtype, files, positions, num_threads)


def positions_on(plan: CorePlan, spec: DecoderSpec, device: torch.device) -> int:
    """Return a bound for the longest sequence on a device; see `positions_that_fit`."""
    total, _ = device_memory(device)
    return positions_that_fit(plan, spec, total, CPU_SHARE if device.type == "cpu" else CUDA_RATIO)


def device_memory(device: torch.device) -> tuple[int, int]:
    """Return total and free bytes of a device; on a CPU, within the limit of this process."""
    if device.type == "cpu":
        return memory_limit(), memory_limit()
    free, total = torch.cuda.mem_get_info(device)
    return total, free


def _check_memory(files: ModelFiles, dtype: ComputeDtype, device: torch.device, shares: int) -> None:
    """Check the memory limit before reading: the system kills a process that exceeds it, without an error.

    Args:
        shares: number of devices that hold a share of the weights each.
    """
    needed = files.num_held * TORCH_DTYPES[dtype].itemsize // shares
    _, free = device_memory(device)
    if needed > free:
        smaller = "choose dtype BFLOAT16 or " if dtype is ComputeDtype.FLOAT32 else ""
        raise OutOfMemory(
            f"{amount(needed)} of weights in {dtype} do not fit, {amount(free)} are free: {smaller}take a smaller model"
        )
