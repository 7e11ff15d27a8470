"""Statistics of one model for callers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace_engine.engine.models.model import Model
from headrace_engine.model_types import ModelState
from headrace_engine.stat_types import EngineStat, PoolStat


def engine_stat(model: Model, engine: str, instance_id: str, now: float) -> EngineStat:
    """Return the current statistics of a model; all figures are 0 unless it is RUNNING or STOPPING."""
    stat = EngineStat(
        model_name=model.name,
        state=model.state,
        engine=engine,
        instance_id=instance_id,
        core_epoch=model.core.epoch,
        time=now,
    )
    if model.state not in (ModelState.RUNNING, ModelState.STOPPING):
        return stat
    outputs, effective, pool = model.outputs, model.effective, pool_stat(model)
    fixed = effective.weight_bytes + effective.workspace_bytes
    held = (pool.blocks_used + pool.blocks_cached) / pool.blocks_total if pool.blocks_total else 0.0
    tokens_free, tokens_total = kv_tokens(model)
    return replace(
        stat,
        running=outputs.live - outputs.waiting,
        waiting=outputs.waiting,
        tokens_total=tokens_total,
        tokens_free=tokens_free,
        pool_bytes_total=fixed + effective.kv_bytes,
        pool_bytes_used=fixed + int(effective.kv_bytes * held),
        pool=pool,
        counters=outputs.history.counters,
        rates=outputs.history.rates(),
    )


def pool_stat(model: Model) -> PoolStat:
    """Return the newest gauges of the KV pool; before the core sent any, the whole pool is free."""
    gauges, config = model.outputs.history.last.pool, model.effective.config
    if gauges.blocks_total:
        return gauges
    total = config.num_blocks or 0
    return PoolStat(blocks_total=total, blocks_free=total, host_blocks_total=config.num_host_blocks or 0)


def kv_tokens(model: Model) -> tuple[int, int]:
    """Return the number of tokens free for new requests, and the capacity of the KV pool in tokens."""
    pool, block_size = pool_stat(model), model.effective.config.block_size or 0
    return (pool.blocks_cached + pool.blocks_free) * block_size, pool.blocks_total * block_size


def devices_of(models: Iterable[Model]) -> tuple[str, ...]:
    """Return the devices that models use, each once."""
    return tuple(dict.fromkeys(device for model in models for device in model.effective.devices))
