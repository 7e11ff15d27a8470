"""Names under which statistics of a model are metrics, of an engine and of a gateway.

Made by `make fields` from the wire contract.
"""

from __future__ import annotations

GAUGES = {
    "requests_running": ("running", "Requests in the batch."),
    "requests_waiting": ("waiting", "Requests in the queue."),
    "kv_blocks": ("blocks_total", "Blocks of the KV pool."),
    "kv_blocks_used": ("blocks_used", "Blocks used by running requests."),
    "kv_blocks_cached": ("blocks_cached", "Blocks held by the prefix cache alone."),
    "kv_tokens": ("tokens_total", "Capacity of the KV pool, in tokens."),
    "kv_tokens_free": ("tokens_free", "Tokens that new requests can use."),
    "host_blocks": ("host_blocks_total", "Blocks of the host tier."),
    "host_blocks_used": ("host_blocks_used", "Blocks of the host tier in use."),
    "pool_bytes": ("pool_bytes_total", "Bytes of device memory reserved for the model."),
    "pool_bytes_used": ("pool_bytes_used", "Bytes of it in use."),
    "generated_tokens_per_second": ("generated_tps", "Tokens generated per second, mean of the last 10 s."),
    "prefilled_tokens_per_second": ("prefilled_tps", "Prompt tokens computed per second, mean of the last 10 s."),
    "batch_size": ("batch_size", "Mean number of sequences in a step, last 10 s."),
    "core_epoch": ("core_epoch", "Number of core starts within this instance, from 1."),
}
"""Gauges by name, which has `headrace_` before it: field of EngineStat, and what it says."""

COUNTERS = {
    "prefix_cache_hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "prefix_cache_miss_tokens": ("prefix_cache_miss_tokens", "Prompt tokens looked up and not found."),
    "prefix_cache_host_hit_tokens": ("prefix_cache_host_hit_tokens", "Of those found, those found in the host tier."),
    "generated_tokens": ("generated_tokens", "Tokens generated."),
    "prefilled_tokens": ("prefilled_tokens", "Prompt tokens computed."),
    "drafted_tokens": ("drafted_tokens", "Tokens drafted and computed, with speculation."),
    "accepted_tokens": ("accepted_tokens", "Of these, tokens that were sampled."),
}
"""Counters by name, since the start of the engine's run; Prometheus' names end with _total."""
