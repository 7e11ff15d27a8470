"""Checks a runtime config, fills in its defaults, and derives the plan of a core from it."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from headrace_engine.backend_choices import WEIGHT_GROUPS, step_limits
from headrace_engine.config import ComputeDtype, RopeScaling, RopeScalingType, RuntimeConfig, Speculation, WeightQuant
from headrace_engine.engine.config.adapter_fields import check_adapters
from headrace_engine.engine.config.backend_fields import check_backend, may_be_cuda
from headrace_engine.engine.config.field_checks import check, is_set, refuse
from headrace_engine.engine.config.fields import RUNTIME
from headrace_engine.engine.config.lease_fields import lease_violations, resolved_lease
from headrace_engine.engine.config.logits_processors import processor_files
from headrace_engine.engine.config.model_paths import check_prefix
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.config.parallel_fields import check_ranks
from headrace_engine.errors import InvalidArgument
from headrace_engine.ipc.messages import CoreReady
from headrace_engine.ipc.plans import CorePlan, DraftPlan
from headrace_engine.model_types import EffectiveConfig
from headrace_engine.models.files import ModelFiles

_NAME = re.compile(r"[A-Za-z0-9._/:-]{1,128}")


def check_config(config: RuntimeConfig, backend: str = "auto") -> None:
    """Refuse an invalid config.

    Args:
        backend: name of the backend that will compute the model, or "auto".

    Raises:
        InvalidArgument: naming every wrong field.
    """
    if not _NAME.fullmatch(config.model_name):
        allowed = 'allowed: 1 to 128 of letters, digits, ".", "_", "-", "/", ":"'
        raise InvalidArgument.field("config.model_name", f"= {config.model_name!r} is not a valid name; {allowed}")
    if not config.model_path:
        raise InvalidArgument.field("config.model_path", "is not set: give a directory, file or hub name")
    check_prefix(config.file_prefix)
    check(config, RUNTIME, "config.")
    _check_block_size(config)
    check_backend(config, backend)
    _check_host_blocks(config)
    _check_group_size(config)
    _step_limits(config, backend)
    _check_rope_scaling(config.rope_scaling)
    _check_draft_model(config)
    check_adapters(config)
    check_ranks(config)
    refuse(lease_violations(config.default_lease, _effective(config, "max_lease"), "config.default_lease"))
    if len(set(config.device_list)) != len(config.device_list):
        raise InvalidArgument.field("config.device_list", f"= {list(config.device_list)} names a device twice")


def _check_block_size(config: RuntimeConfig) -> None:
    size = config.block_size
    if size is not None and size & (size - 1):
        raise InvalidArgument.field("config.block_size", f"= {size} is not a power of two; allowed: 8 to 128")


def _check_host_blocks(config: RuntimeConfig) -> None:
    if config.num_host_blocks and not _effective(config, "enable_prefix_cache"):
        text = f"= {config.num_host_blocks} is set, but enable_prefix_cache is false: they have no effect"
        raise InvalidArgument.field("config.num_host_blocks", text)


def _check_group_size(config: RuntimeConfig) -> None:
    size = config.weight_quant_group_size
    if size is not None and _effective(config, "weight_quant") is WeightQuant.NONE:
        text = f"= {size} is set, but weight_quant is NONE: set it to INT8 or INT4"
        raise InvalidArgument.field("config.weight_quant_group_size", text)


def _step_limits(config: RuntimeConfig, backend: str) -> tuple[int | None, int | None]:
    """Return max_batch and max_prefill_tokens; None: the core chooses, as it knows the device.

    Raises:
        InvalidArgument: a step does not hold a token of every sequence, on whatever device.
    """
    batch, tokens = config.max_batch, config.max_prefill_tokens
    if not may_be_cuda(config, backend):
        return step_limits(batch, tokens, cuda=False)
    step_limits(batch, tokens, cuda=True)
    return batch, tokens


def _check_rope_scaling(scaling: RopeScaling | None) -> None:
    if scaling is None or scaling.type not in (None, RopeScalingType.MODEL):
        return
    given = [field.name for field in fields(RopeScaling) if field.name != "type"]
    given = [name for name in given if getattr(scaling, name) is not None]
    if given:
        text = "is set, but type MODEL takes all factors from the model's files"
        raise InvalidArgument.field(f"config.rope_scaling.{given[0]}", text)


def _check_draft_model(config: RuntimeConfig) -> None:
    drafts = config.speculation is Speculation.DRAFT
    if drafts and not config.draft_model:
        text = "is not set, but speculation is DRAFT: give a smaller model with the same vocabulary"
        raise InvalidArgument.field("config.draft_model", text)
    if config.draft_model and not drafts:
        text = f"= {config.draft_model!r} is set, but speculation is not DRAFT: it has no effect"
        raise InvalidArgument.field("config.draft_model", text)


def _effective(config: RuntimeConfig, name: str) -> Any:
    value = getattr(config, name)
    return value if is_set(value) else RUNTIME[name].default


def effective_config(config: RuntimeConfig, backend: str = "auto") -> RuntimeConfig:
    """Return the config with every default filled in that is known before the core starts."""
    values = {name: _effective(config, name) for name in RUNTIME}
    values["max_batch"], values["max_prefill_tokens"] = _step_limits(config, backend)
    if config.weight_quant_group_size is None:
        values["weight_quant_group_size"] = WEIGHT_GROUPS.get(values["weight_quant"])
    values["default_lease"] = resolved_lease(config.default_lease, None, values["max_lease"])
    return replace(config, **{name: value for name, value in values.items() if value is not None})


def core_plan(
    config: RuntimeConfig, files: ModelFiles, options: EngineOptions, draft: DraftPlan | None = None
) -> CorePlan:
    """Return the plan for a core."""
    max_batch, max_prefill_tokens = _step_limits(config, options.backend)
    return CorePlan(
        path=str(files.path),
        format=files.format,
        file_prefix=config.file_prefix,
        backend=options.backend,
        dtype=config.dtype or ComputeDtype.AUTO,
        compute_unit=config.compute_unit,
        device_list=config.device_list,
        num_threads=_effective(config, "num_threads"),
        max_batch=max_batch or 0,
        max_length=config.max_length or 0,
        max_prefill_tokens=max_prefill_tokens or 0,
        block_size=_effective(config, "block_size"),
        num_blocks=_effective(config, "num_blocks"),
        num_host_blocks=_effective(config, "num_host_blocks"),
        kv_cache_mode=_effective(config, "kv_cache_mode"),
        enable_prefix_cache=_effective(config, "enable_prefix_cache"),
        prefix_cache_ttl=config.prefix_cache_ttl,
        memory_ratio=config.memory_ratio,
        rope_scaling=config.rope_scaling,
        vocab_size=files.spec.vocab_size,
        weight_quant=_effective(config, "weight_quant"),
        weight_quant_group_size=config.weight_quant_group_size,
        activation_quant=_effective(config, "activation_quant"),
        logits_processors=processor_files(options.logits_processors),
        stream_interval=options.stream_interval,
        step_target=options.step_target,
        speculation=_effective(config, "speculation"),
        max_drafts=_effective(config, "max_drafts"),
        draft=draft,
        tensor_parallel=_effective(config, "tensor_parallel"),
        tensor_parallel_mode=_effective(config, "tensor_parallel_mode"),
        core_ping_limit=options.core_ping_limit,
    )


def ready_config(config: RuntimeConfig, ready: CoreReady) -> RuntimeConfig:
    """Return the config with the values that the core chose."""
    return effective_config(
        replace(
            config,
            dtype=ready.dtype,
            compute_unit=ready.compute_unit,
            num_threads=ready.num_threads,
            max_batch=ready.max_batch or config.max_batch,
            max_prefill_tokens=ready.max_prefill_tokens or config.max_prefill_tokens,
            max_length=ready.max_length,
            num_blocks=ready.num_blocks,
            num_host_blocks=ready.num_host_blocks,
        )
    )


def ready_effective(effective: EffectiveConfig, plan: CorePlan, ready: CoreReady) -> EffectiveConfig:
    """Return the effective config once a core is ready, with the values it chose and its sizes."""
    config = ready_config(effective.config, ready)
    return replace(
        effective,
        config=config,
        devices=ready.devices,
        weight_bytes=ready.weight_bytes,
        workspace_bytes=ready.workspace_bytes,
        kv_bytes=ready.kv_bytes,
        kv_tokens=ready.num_blocks * (config.block_size or 0),
        host_kv_bytes=ready.host_kv_bytes,
        host_kv_tokens=ready.num_host_blocks * (config.block_size or 0),
        logits_processors=tuple(file.name for file in plan.logits_processors if file.name not in ready.idle_processors),
        idle_processors=ready.idle_processors,
    )
