"""`/metrics`: the statistics of the engines, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.errors import HeadraceError
from headrace.model_types import EngineStat, ServerInfo
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.http.clients import Clients
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import failure_of
from headrace_gateway.http.owner_metrics import OwnerMetrics

_GAUGES = {
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
    "core_epoch": ("core_epoch", "Number of core starts within the engine's run."),
}
"""Gauges by name: attribute of EngineStat, and what it says."""

_COUNTERS = {
    "generated_tokens": ("generated_tokens", "Tokens generated."),
    "prefilled_tokens": ("prefilled_tokens", "Prompt tokens computed."),
    "prefix_cache_hit_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache."),
    "prefix_cache_miss_tokens": ("prefix_cache_miss_tokens", "Prompt tokens looked up and not found."),
    "prefix_cache_host_hit_tokens": ("prefix_cache_host_hit_tokens", "Of those found, those found in the host tier."),
    "drafted_tokens": ("drafted_tokens", "Tokens drafted and computed, with speculation."),
    "accepted_tokens": ("accepted_tokens", "Of these, tokens that were sampled."),
}
"""Counters by name, since the start of the engine's run; Prometheus' names end with _total."""

_STEP_QUANTILES = {"0.5": "step_time_p50", "0.99": "step_time_p99"}


class Metrics:
    """Answers Prometheus.

    Args:
        clients: ask the engines.
        access: knows what owners use.
    """

    def __init__(self, clients: Clients, access: Access) -> None:
        self._clients, self._access = clients, access

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with the statistics of the engines that answer."""
        try:
            server = await self._clients.current.server_info()
            reached = any(engine.reachable for engine in server.engines)
            stats = await self._clients.current.engine_stats() if reached else []
        except HeadraceError as error:
            raise failure_of(error, {}) from None
        registry = CollectorRegistry()
        registry.register(_Statistics(server, stats))
        if callers.current().admin:
            registry.register(OwnerMetrics(self._access))
        await exchange.answer_text(generate_latest(registry), CONTENT_TYPE_LATEST)


class _Statistics(Collector):
    """Statistics as Prometheus' families."""

    def __init__(self, server: ServerInfo, stats: Sequence[EngineStat]) -> None:
        self._server, self._stats = server, stats

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        reachable = GaugeMetricFamily("headrace_engine_reachable", "1 if the gateway reaches it.", labels=["engine"])
        for engine in self._server.engines:
            reachable.add_metric([engine.engine], float(engine.reachable))
        yield reachable
        labels = ["engine", "model"]
        for name, (field, text) in _GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"headrace_{name}", text, labels=labels), field)
        for name, (field, text) in _COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"headrace_{name}", text, labels=labels), field)
        text = "Time of a step over the last 10 s, by quantile; missing where there was none."
        steps = GaugeMetricFamily("headrace_step_seconds", text, labels=[*labels, "quantile"])
        for stat in self._stats:
            for quantile, field in _STEP_QUANTILES.items():
                if (milliseconds := getattr(stat, field)) is not None:
                    steps.add_metric([stat.engine, stat.model_name, quantile], milliseconds / 1000)
        yield steps

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, field: str
    ) -> GaugeMetricFamily | CounterMetricFamily:
        for stat in self._stats:
            family.add_metric([stat.engine, stat.model_name], getattr(stat, field))
        return family
