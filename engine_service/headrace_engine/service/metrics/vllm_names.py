"""Figures under the names that vLLM gives them, which routers such as llm-d and published dashboards read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace_engine.engine.models.measured import Measured
from headrace_engine.stat_types import EngineStat

_LABELS = ("engine", "model_name")


def _usage(stat: EngineStat) -> float:
    return stat.pool.blocks_used / stat.pool.blocks_total if stat.pool.blocks_total else 0.0


def _looked_up(stat: EngineStat) -> float:
    return stat.counters.prefix_cache_hit_tokens + stat.counters.prefix_cache_miss_tokens


_GAUGES: dict[str, tuple[Callable[[EngineStat], float], str]] = {
    "num_requests_running": (lambda stat: stat.running, "Requests in the batch."),
    "num_requests_waiting": (lambda stat: stat.waiting, "Requests in the queue."),
    "kv_cache_usage_perc": (_usage, "Part of the KV pool that running requests use, 0 to 1."),
}

_COUNTERS: dict[str, tuple[Callable[[EngineStat], float], str]] = {
    "prefix_cache_queries": (_looked_up, "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": (lambda stat: stat.counters.prefix_cache_hit_tokens, "Of these, tokens that were found."),
    "prompt_tokens": (lambda stat: stat.counters.prefilled_tokens, "Prompt tokens computed."),
    "generation_tokens": (lambda stat: stat.counters.generated_tokens, "Tokens generated."),
}


def vllm_families(models: Sequence[Measured]) -> Iterator[Metric]:
    """Yield the families under vLLM's names."""
    for name, (value, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for each in models:
            gauge.add_metric(_of(each), value(each.stat))
        yield gauge
    for name, (value, text) in _COUNTERS.items():
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for each in models:
            counter.add_metric(_of(each), value(each.stat))
        yield counter
    yield _cache_config(models)
    yield _adapters(models)


def _cache_config(models: Sequence[Measured]) -> Metric:
    labels = (*_LABELS, "block_size", "num_gpu_blocks")
    family = GaugeMetricFamily("vllm:cache_config_info", "The KV pool's blocks, in labels.", labels=labels)
    for each in models:
        family.add_metric((*_of(each), str(each.block_size), str(each.stat.pool.blocks_total)), 1.0)
    return family


def _adapters(models: Sequence[Measured]) -> Metric:
    """The value is the time, by which readers take the newest of several."""
    labels = (*_LABELS, "max_lora", "running_lora_adapters", "waiting_lora_adapters")
    family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use, in labels; the time.", labels=labels)
    for each in models:
        if each.max_adapters:
            names = (",".join(each.running_adapters), ",".join(each.waiting_adapters))
            family.add_metric((*_of(each), str(each.max_adapters), *names), each.stat.time)
    return family


def _of(each: Measured) -> tuple[str, str]:
    return each.stat.engine, each.stat.model_name
