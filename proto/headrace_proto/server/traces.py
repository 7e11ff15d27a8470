"""Traces of servers: where spans go, and the trace of a call in its log lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from structlog.contextvars import bind_contextvars

from headrace_proto.pure.tracing import HEADER, trace_id
from headrace_proto.server.logs import logger

log = logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_FLUSH_MILLISECONDS = 2000


def note_trace(metadata: Mapping[str, Any]) -> None:
    """Put the trace that a call belongs to into the log lines of the current task."""
    sent = metadata.get(HEADER)
    if isinstance(sent, str) and (found := trace_id(sent)):
        bind_contextvars(trace_id=found)


def start_tracing(service: str, **attributes: str) -> Callable[[], None]:
    """Send spans to the collector that OpenTelemetry's own variables name; without one, make none.

    Args:
        service: name of the service, unless OTEL_SERVICE_NAME has another.
        attributes: of all its spans.

    Returns:
        A function that sends what is left, in two seconds at most.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return _nothing
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return _nothing
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("tracing_not_installed", advice=f"install {service} with its extra otel")
        return _nothing
    named = attributes if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service, **attributes}
    # At the end `force_flush` bounds the wait; the provider's own hook would not.
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)

    def flush() -> None:
        provider.force_flush(_FLUSH_MILLISECONDS)

    return flush


def _nothing() -> None:
    pass
