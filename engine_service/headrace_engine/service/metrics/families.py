"""Measurements of an engine's models, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace_proto.pure.histograms import Histogram
from headrace_proto.pure.stat_metrics import COUNTERS, GAUGES
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from headrace_engine.engine.models.measured import Measured
from headrace_engine.model_types import ServerInfo
from headrace_engine.stat_types import EngineStat

_HISTOGRAMS = {
    "queue_seconds": ("queue_seconds", "Time of a sequence from its arrival to its first step."),
    "first_token_seconds": ("first_token_seconds", "Time of a sequence from its arrival to its first token."),
    "inter_token_seconds": ("inter_token_seconds", "Time between tokens of a sequence, counted when it ends."),
    "request_seconds": ("request_seconds", "Time of a sequence from its arrival to its end."),
    "step_duration_seconds": ("step_seconds", "Time of a step."),
    "step_sequences": ("batch_size", "Number of sequences in a step."),
    "prompt_length_tokens": ("prompt_tokens", "Tokens of a request's prompt, counted when it ends."),
    "generated_length_tokens": ("generated_tokens", "Tokens that a sequence generated, counted when it ends."),
}
"""Histograms by name: attribute of Observations, and what it says."""

_OWNER_COUNTERS = {
    "owner_sequences": ("sequences", "Sequences of an owner that have ended."),
    "owner_prompt_tokens": ("prompt_tokens", "Tokens of an owner's prompts, counted when requests end."),
    "owner_generated_tokens": ("generated_tokens", "Tokens generated for an owner, counted when sequences end."),
}

_LABELS = ("engine", "model")


def families(server: ServerInfo, models: Sequence[Measured]) -> Iterator[Metric]:
    """Yield the families of an engine's models, under Headrace's names."""
    about = {"engine": server.name, "instance_id": server.instance_id, "build": server.build}
    yield InfoMetricFamily("headrace_engine", "The engine.", value=about)
    yield _family(GaugeMetricFamily, "engine_draining", "1 while the engine shuts down.", ("engine",), [
        ((server.name,), float(server.draining))
    ])  # fmt: skip
    states = [((each.stat.engine, each.stat.model_name, each.stat.state.name), 1.0) for each in models]
    yield _family(GaugeMetricFamily, "model_state", "1 for the state that a model is in.", (*_LABELS, "state"), states)
    for name, (field, text) in GAUGES.items():
        yield _family(GaugeMetricFamily, name, text, _LABELS, _values(models, field))
    for name, (field, text) in COUNTERS.items():
        yield _family(CounterMetricFamily, name, text, _LABELS, _values(models, field))
    yield from _counts(models)
    for name, (field, text) in _HISTOGRAMS.items():
        family = HistogramMetricFamily(f"headrace_{name}", text, labels=_LABELS)
        for each in models:
            histogram: Histogram = getattr(each.observed, field)
            family.add_metric(_of(each), histogram.cumulative(), histogram.total)
        yield family


def value_of(stat: EngineStat, field: str) -> float:
    """Return a statistic by the name of its field of the wire's EngineStat."""
    holder = next(part for part in (stat, stat.pool, stat.counters, stat.rates) if hasattr(part, field))
    return float(getattr(holder, field))


def _counts(models: Sequence[Measured]) -> Iterator[Metric]:
    reasons = [
        ((*_of(each), reason.name), float(count)) for each in models for reason, count in each.observed.finished.items()
    ]
    text = "Sequences that ended, by reason."
    yield _family(CounterMetricFamily, "sequences_finished", text, (*_LABELS, "reason"), reasons)
    preempted = [(_of(each), float(each.observed.preemptions)) for each in models]
    yield _family(CounterMetricFamily, "preemptions", "Preemptions of sequences.", _LABELS, preempted)
    handed = [(_of(each), float(each.observed.handovers)) for each in models]
    text = "Requests that other engines had begun, and that went on here."
    yield _family(CounterMetricFamily, "handovers", text, _LABELS, handed)
    for name, (field, text) in _OWNER_COUNTERS.items():
        uses = [
            ((*_of(each), owner), float(getattr(use, field)))
            for each in models
            for owner, use in each.observed.owners.items()
        ]
        yield _family(CounterMetricFamily, name, text, (*_LABELS, "owner"), uses)


def _values(models: Iterable[Measured], field: str) -> list[tuple[Sequence[str], float]]:
    return [(_of(each), value_of(each.stat, field)) for each in models]


def _of(each: Measured) -> tuple[str, str]:
    return each.stat.engine, each.stat.model_name


def _family(
    kind: Any, name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    family: Metric = kind(f"headrace_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)  # type: ignore[attr-defined]  # Metric's subclasses have it.
    return family
