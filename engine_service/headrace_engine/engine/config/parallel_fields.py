"""Checks of tensor_parallel: what a config or a model has that ranks cannot share."""

from __future__ import annotations

from headrace_engine.config import ComputeUnit, RuntimeConfig, Speculation, TensorParallelMode
from headrace_engine.errors import InvalidArgument
from headrace_engine.models.files import ModelFiles

_FIELD = "config.tensor_parallel"


def check_ranks(config: RuntimeConfig) -> None:
    """Refuse fields that do not go with several ranks, and a mode of sharing without any.

    Raises:
        InvalidArgument: naming the field.
    """
    ranks = config.tensor_parallel or 1
    if ranks == 1:
        if config.tensor_parallel_mode is TensorParallelMode.REDUCED:
            text = "= REDUCED is set, but tensor_parallel is 1: it has no effect"
            raise InvalidArgument.field("config.tensor_parallel_mode", text)
        return
    if config.speculation is Speculation.DRAFT:
        text = f"= {ranks}, and speculation is DRAFT: ranks do not share a draft model yet; allowed: 1"
        raise InvalidArgument.unsupported(_FIELD, text)
    if config.compute_unit is ComputeUnit.CPU_NUMA:
        text = f"= {ranks}, and compute_unit is CPU_NUMA, which shares matrices by memory nodes already; allowed: 1"
        raise InvalidArgument.unsupported(_FIELD, text)
    if config.device_list and len(config.device_list) != ranks:
        text = f"= {list(config.device_list)}, but tensor_parallel is {ranks}: name a device for each rank, or none"
        raise InvalidArgument.field("config.device_list", text)
    if config.num_threads and config.num_threads < ranks:
        text = f"= {config.num_threads}, but tensor_parallel is {ranks}: each rank takes a thread"
        raise InvalidArgument.field("config.num_threads", f"{text}; allowed: 0, or {ranks} and more")


def check_shares(config: RuntimeConfig, files: ModelFiles) -> None:
    """Refuse a model whose matrices cannot be shared by the ranks.

    Raises:
        InvalidArgument: naming the field.
    """
    ranks, heads = config.tensor_parallel or 1, files.spec.num_kv_heads
    if heads % ranks:
        allowed = ", ".join(str(each) for each in range(1, heads + 1) if heads % each == 0)
        text = f"= {ranks} does not divide the {heads} KV heads of the model; allowed: {allowed}"
        raise InvalidArgument.field(_FIELD, text)
