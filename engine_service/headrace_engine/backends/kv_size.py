"""Size of the KV pool: from the plan, the model and the available memory."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.config import KvCacheMode
from headrace_engine.environment import memory_ratio
from headrace_engine.errors import InvalidArgument, OutOfMemory
from headrace_engine.ipc.plans import CorePlan
from headrace_engine.models.spec import DecoderSpec

CPU_SHARE = 0.25
"""Maximum share of the memory limit for a pool on a CPU, if neither num_blocks nor a ratio is given."""
_FLOAT = 4
_LEAST_BYTES = {KvCacheMode.DEFAULT: 2.0, KvCacheMode.INT8: 1.0, KvCacheMode.UINT4: 0.5}
"""Minimum bytes of an entry of keys or values, without scales."""

CUDA_RATIO = 0.9
"""Share of a CUDA device's memory for weights, workspace and pool, if no ratio is given."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the device that holds the pool, in bytes.

    Attributes:
        total: size of the device, or the limit of the container.
        weights, workspace: used by the model and by its largest step.
        free: maximum left for the pool, whatever the ratio.
        host: used by the host tier, if it is in the same memory.
    """

    total: int
    weights: int
    workspace: int
    free: int
    host: int = 0


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A pool that holds at least one sequence of max_length."""

    num_blocks: int
    max_length: int
    bytes: int


def length_limit(plan: CorePlan, spec: DecoderSpec) -> int:
    """Return the maximum length that the plan requests: its max_length, or the model's if that is 0.

    Raises:
        InvalidArgument: the plan's max_length exceeds the model's.
    """
    if plan.max_length > spec.max_length:
        text = (
            f"= {plan.max_length} exceeds the {spec.max_length} positions that the model was made for: "
            f"set at most {spec.max_length}, or set rope_scaling"
        )
        raise InvalidArgument.field("config.max_length", text)
    return plan.max_length or spec.max_length


def positions_that_fit(plan: CorePlan, spec: DecoderSpec, total: int, ratio: float) -> int:
    """Return a bound for the longest sequence before weights and pool are sized, for tables of all positions.

    It is the maximum length of the plan, or less if keys, values and rotary tables would not fit without any weights.

    Args:
        total: bytes of the memory that holds the pool.
        ratio: share of it that the pool may take, if the plan sets none.

    Raises:
        InvalidArgument: max_length exceeds the model's.
    """
    max_length = length_limit(plan, spec)
    if plan.num_blocks:
        return min(max_length, plan.num_blocks * plan.block_size)
    token = int(2 * spec.num_layers * spec.kv_width * _LEAST_BYTES[plan.kv_cache_mode])
    tables = _FLOAT * spec.rotary_dim * len(spec.ropes)
    share = plan.memory_ratio or memory_ratio() or ratio
    fitting = min(int(share * total) // token, total // (token + tables))
    return min(max_length, fitting + plan.block_size)


def size_pool(plan: CorePlan, spec: DecoderSpec, memory: Memory, block_bytes: int, ratio: float | None) -> PoolSize:
    """Choose the number of blocks, and the maximum sequence length if the plan leaves it open.

    Args:
        block_bytes: bytes of a block in all layers.
        ratio: share of memory.total for weights, workspace and pool; None: the pool holds max_batch sequences of full
            length, in at most CPU_SHARE of it.

    Raises:
        OutOfMemory: one sequence of max_length does not fit; the message gives the numbers, and what to lower.
        InvalidArgument: max_length exceeds the model's.
    """
    max_length = length_limit(plan, spec)
    if plan.num_blocks:
        blocks = _given(plan, memory, block_bytes)
    elif ratio is not None:
        budget = int(ratio * memory.total) - memory.weights - memory.workspace - memory.host
        blocks = max(0, min(budget, memory.free)) // block_bytes
    else:
        budget = min(int(CPU_SHARE * memory.total), memory.free)
        blocks = min(plan.max_batch * -(-max_length // plan.block_size), max(0, budget) // block_bytes)
    held = blocks * plan.block_size
    if held < (max_length if plan.max_length else 1):
        raise _too_small(plan, memory, max_length, blocks, block_bytes)
    return PoolSize(blocks, min(max_length, held), blocks * block_bytes)


def host_bytes(plan: CorePlan, block_bytes: int, free: int) -> int:
    """Return the bytes of the host tier that the plan requests.

    Args:
        free: bytes of host memory that it may take.

    Raises:
        OutOfMemory: it requests more; the message gives the numbers.
    """
    needed = plan.num_host_blocks * block_bytes
    if needed > max(0, free):
        raise OutOfMemory(
            f"num_host_blocks {plan.num_host_blocks} × block_size {plan.block_size} needs {amount(needed)} of host "
            f"memory, {amount(free)} are free: lower num_host_blocks to {max(0, free) // block_bytes} or less"
        )
    return needed


def _given(plan: CorePlan, memory: Memory, block_bytes: int) -> int:
    needed = plan.num_blocks * block_bytes
    if needed > memory.free:
        raise OutOfMemory(
            f"num_blocks {plan.num_blocks} × block_size {plan.block_size} needs {amount(needed)} of KV cache, "
            f"{amount(memory.free)} are free: lower num_blocks to {max(0, memory.free) // block_bytes} or less"
        )
    return plan.num_blocks


def _too_small(plan: CorePlan, memory: Memory, max_length: int, blocks: int, block_bytes: int) -> OutOfMemory:
    held, needed = blocks * plan.block_size, -(-max_length // plan.block_size)
    if plan.num_blocks:
        return OutOfMemory(
            f"num_blocks {blocks} × block_size {plan.block_size} holds {held} tokens, max_length is {max_length}: "
            f"raise num_blocks to {needed} or lower max_length to {held}"
        )
    host = f", the host tier {amount(memory.host)}" if memory.host else ""
    lower = f"lower max_length to {held}" if held else "free memory or choose a smaller model"
    return OutOfMemory(
        f"max_length {max_length} needs {amount(needed * block_bytes)} of KV cache for one sequence, "
        f"{amount(blocks * block_bytes)} are free (of {amount(memory.total)}; weights take "
        f"{amount(memory.weights)}, workspace {amount(memory.workspace)}{host}): {lower}, or raise memory_ratio"
    )


def amount(size: int) -> str:
    """Format bytes for people: "11.2 GiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{max(0, size)} bytes"
