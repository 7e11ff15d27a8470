"""Metrics of what owners of API keys use, and of their limits; for keys that may read all metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_gateway.access.access import Access, Standing

_GAUGES = {
    "requests": ("requests", "Requests of an owner that have not ended."),
    "requests_waiting": ("waiting", "Of these, requests that wait for a slot of a batch."),
    "bytes": ("bytes", "Bytes reserved for the requests of an owner."),
}
"""Gauges by name: attribute of a Use, and what it says."""


class OwnerMetrics(Collector):
    """Use by owner, as Prometheus' families.

    Args:
        access: knows it.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        standings, uses = self._access.standings(), self._access.uses
        for name, (attribute, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"headrace_owner_{name}", text, labels=["owner"])
            for one in standings:
                gauge.add_metric([one.owner], getattr(one.use, attribute))
            yield gauge
        tokens = {"prompt": (uses.prompt_tokens, "of prompts"), "sampled": (uses.sampled_tokens, "sampled")}
        for kind, (counts, what) in tokens.items():
            text = f"Tokens {what} of an owner, since the start of the gateway."
            counter = CounterMetricFamily(f"headrace_owner_{kind}_tokens", text, labels=["owner"])
            for one in standings:
                counter.add_metric([one.owner], counts[one.owner])
            yield counter
        yield _limits(standings)


def _limits(standings: Sequence[Standing]) -> GaugeMetricFamily:
    family = GaugeMetricFamily("headrace_owner_limit", "Limits of an owner's keys.", labels=["owner", "limit"])
    for one in standings:
        for name, most in one.limits.items():
            family.add_metric([one.owner, name], most)
    return family
