"""Statistics of engines. Made by `make fields` from the wire contract."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._types.models import ModelState


@dataclass(frozen=True, slots=True)
class EngineStat:
    """Statistics of one model on an engine. Counters run from the start of the instance.

    Attributes:
        model_name: The model.
        state: Its state; all other values are 0 unless it is RUNNING or STOPPING.
        running: Requests in the batch.
        waiting: Requests in the queue.
        blocks_total: Blocks of the KV pool; the sum of used, cached and free.
        blocks_used: Blocks used by running requests.
        blocks_cached: Blocks held by the prefix cache alone; evicted when needed.
        blocks_free: Empty blocks.
        tokens_total: Capacity of the KV pool, in tokens.
        tokens_free: Tokens that new requests can use; those of cached and free blocks.
        host_blocks_total: Blocks of the host tier.
        host_blocks_used: Blocks of the host tier in use; they hold what the KV pool evicted.
        prefix_cache_hit_tokens: Prompt tokens found in the prefix cache.
        prefix_cache_miss_tokens: Prompt tokens looked up and not found.
        prefix_cache_hit_rate: Fraction of looked-up tokens that were found, 0 to 1. None before the first lookup.
        prefix_cache_miss_rate: Fraction of looked-up tokens that were not found, 0 to 1. None before the first lookup.
        pool_bytes_total: Bytes of device memory reserved for the model.
        pool_bytes_used: Bytes of it in use.
        prefix_cache_host_hit_tokens: Of those found, those found in the host tier.
        generated_tokens: Tokens generated.
        prefilled_tokens: Prompt tokens computed.
        generated_tps: Tokens generated per second, mean of the last 10 s.
        prefilled_tps: Prompt tokens computed per second, mean of the last 10 s.
        step_time_p50: Median time of a step, last 10 s. None: no step. In ms.
        step_time_p99: 99th percentile of the time of a step, last 10 s. None: no step. In ms.
        batch_size: Mean number of sequences in a step, last 10 s.
        drafted_tokens: Tokens drafted and computed, with speculation.
        accepted_tokens: Of these, tokens that were sampled.
        engine: Name of the engine.
        instance_id: Random id of this run of the engine. If it changes, the logs are gone.
        core_epoch: Number of core starts within this instance, from 1. If it grows, the core restarted; logs remain.
        api_version: Version of this contract, such as "1.0".
        build: Version and commit of the engine.
        time: When these statistics were taken. In ms since the epoch.
    """

    model_name: str
    state: ModelState
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    tokens_total: int
    tokens_free: int
    host_blocks_total: int
    host_blocks_used: int
    prefix_cache_hit_tokens: int
    prefix_cache_miss_tokens: int
    prefix_cache_hit_rate: float | None
    prefix_cache_miss_rate: float | None
    pool_bytes_total: int
    pool_bytes_used: int
    prefix_cache_host_hit_tokens: int
    generated_tokens: int
    prefilled_tokens: int
    generated_tps: float
    prefilled_tps: float
    step_time_p50: float | None
    step_time_p99: float | None
    batch_size: float
    drafted_tokens: int
    accepted_tokens: int
    engine: str
    instance_id: str
    core_epoch: int
    api_version: str
    build: str
    time: float | None
