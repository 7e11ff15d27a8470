"""`/metrics`: the gateway's calls and the statistics of the engines, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.errors import HeadraceError
from headrace.model_types import EngineStat, ServerInfo
from headrace_proto.pure.stat_metrics import COUNTERS, GAUGES
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_gateway.access import callers
from headrace_gateway.access.access import Access
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http.clients import Clients
from headrace_gateway.http.exchange import Exchange
from headrace_gateway.http.failures import failure_of
from headrace_gateway.http.metrics.owners import OwnerMetrics

_HELD = ("Calls in progress, besides sessions.", "Sessions of clients.")

_STEP_QUANTILES = {"0.5": "step_time_p50", "0.99": "step_time_p99"}


class Metrics:
    """Answers Prometheus.

    Args:
        clients: ask the engines.
        access: knows what owners use.
        calls: what the gateway counts of its own.
    """

    def __init__(self, clients: Clients, access: Access, calls: LiveCalls) -> None:
        self._clients, self._access, self._calls = clients, access, calls

    async def __call__(self, exchange: Exchange) -> None:
        """Answer with the gateway's counts, and the statistics of the engines that answer."""
        try:
            server = await self._clients.current.server_info()
            reached = any(engine.reachable for engine in server.engines)
            stats = await self._clients.current.engine_stats() if reached else []
        except HeadraceError as error:
            raise failure_of(error, {}) from None
        registry = CollectorRegistry()
        registry.register(_Calls(self._calls, by_key=callers.current().reads_metrics))
        registry.register(_Statistics(server, stats))
        if callers.current().reads_metrics:
            registry.register(OwnerMetrics(self._access))
        await exchange.answer_text(generate_latest(registry), CONTENT_TYPE_LATEST)


class _Calls(Collector):
    """The gateway's calls as Prometheus' families, with those of each API key for admins."""

    def __init__(self, calls: LiveCalls, *, by_key: bool) -> None:
        self._calls, self._by_key = calls, by_key

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        counts = self._calls.counts
        for name, text, value in zip(("calls", "sessions"), _HELD, self._calls.held, strict=True):
            yield GaugeMetricFamily(f"headrace_gateway_{name}_in_progress", text, value=float(value))
        ended = CounterMetricFamily(
            "headrace_gateway_calls", "Calls that have ended.", labels=["api", "method", "code"]
        )
        for call, count in counts.ended.items():
            ended.add_metric(call, count)
        yield ended
        text = "Time of a call, to its last answer."
        seconds = HistogramMetricFamily("headrace_gateway_call_seconds", text, labels=["api", "method"])
        for called, histogram in counts.seconds.items():
            seconds.add_metric(called, histogram.cumulative(), histogram.total)
        yield seconds
        if self._by_key:
            yield from self._keys()

    def _keys(self) -> Iterator[Metric]:
        counts = self._calls.counts
        by_key = CounterMetricFamily("headrace_gateway_key_calls", "Calls with an API key, by name.", labels=["key"])
        for key, count in counts.by_key.items():
            by_key.add_metric([key], count)
        yield by_key
        text = "Calls that failed, by the name of their API key (empty: none) and by reason."
        failed = CounterMetricFamily("headrace_gateway_failures", text, labels=["key", "reason"])
        for failure, count in counts.refused.items():
            failed.add_metric(failure, count)
        yield failed


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
        for name, (field, text) in GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"headrace_{name}", text, labels=labels), field)
        for name, (field, text) in COUNTERS.items():
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
