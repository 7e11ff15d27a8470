"""The statistics of one model, as callers see them."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_engine.engine.models.model import Model
from headrace_engine.model_types import EngineStat, ModelState


def engine_stat(model: Model, engine: str, instance_id: str, now: float) -> EngineStat:
    """What a model does now; all figures are 0 unless it is RUNNING or STOPPING."""
    base = EngineStat(
        model_name=model.name,
        state=model.state,
        engine=engine,
        instance_id=instance_id,
        core_epoch=model.core_epoch,
        time=now,
    )
    if model.state not in (ModelState.RUNNING, ModelState.STOPPING):
        return base
    return _filled(model, base)


def kv_tokens(model: Model) -> tuple[int, int]:
    """Tokens that new requests could take, and tokens that the KV pool holds."""
    gauges, config = model.outputs.history.last, model.effective.config
    block_size = config.block_size or 0
    total = gauges.blocks_total or config.num_blocks or 0
    free = gauges.blocks_cached + gauges.blocks_free if gauges.blocks_total else total
    return free * block_size, total * block_size


def devices_of(models: Iterable[Model]) -> tuple[str, ...]:
    """The devices that models use, each once."""
    return tuple(dict.fromkeys(device for model in models for device in model.effective.devices))


def _filled(model: Model, base: EngineStat) -> EngineStat:
    outputs, history, effective = model.outputs, model.outputs.history, model.effective
    gauges, rates = history.last, history.rates()
    total = gauges.blocks_total or effective.config.num_blocks or 0
    free = gauges.blocks_free if gauges.blocks_total else total
    fixed = effective.weight_bytes + effective.workspace_bytes
    tokens_free, tokens_total = kv_tokens(model)
    held = (gauges.blocks_used + gauges.blocks_cached) / total if total else 0.0
    hits, misses = history.prefix_cache_hit_tokens, history.prefix_cache_miss_tokens
    looked_up = hits + misses
    return EngineStat(
        model_name=base.model_name,
        state=base.state,
        engine=base.engine,
        instance_id=base.instance_id,
        core_epoch=base.core_epoch,
        time=base.time,
        running=outputs.live - outputs.waiting,
        waiting=outputs.waiting,
        blocks_total=total,
        blocks_used=gauges.blocks_used,
        blocks_cached=gauges.blocks_cached,
        blocks_free=free,
        host_blocks_total=effective.config.num_host_blocks or 0,
        host_blocks_used=gauges.host_blocks_used,
        tokens_total=tokens_total,
        tokens_free=tokens_free,
        prefix_cache_hit_tokens=hits,
        prefix_cache_host_hit_tokens=history.prefix_cache_host_hit_tokens,
        prefix_cache_miss_tokens=misses,
        prefix_cache_hit_rate=hits / looked_up if looked_up else None,
        prefix_cache_miss_rate=misses / looked_up if looked_up else None,
        pool_bytes_total=fixed + effective.kv_bytes,
        pool_bytes_used=fixed + int(effective.kv_bytes * held),
        generated_tokens=history.generated_tokens,
        prefilled_tokens=history.prefilled_tokens,
        generated_tps=rates.generated_tps,
        prefilled_tps=rates.prefilled_tps,
        step_time_p50=rates.step_time_p50,
        step_time_p99=rates.step_time_p99,
        batch_size=rates.batch_size,
    )
