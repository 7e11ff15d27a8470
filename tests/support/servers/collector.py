"""A collector of traces: what servers and clients send by OTLP, as it comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from support.clocks.waiting import LIMIT


@dataclass(frozen=True)
class Span:
    """A span that came.

    Attributes:
        service: who made it.
        begun, ended: nanoseconds since the Unix epoch.
    """

    service: str
    name: str
    trace: str
    id: str
    parent: str
    begun: int
    ended: int
    attributes: dict[str, Any]
    events: list[str]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.address = ""
        self._news = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:
        """Take spans."""
        with self._news:
            for resource in request.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                self.spans += [_span(service, span) for scope in resource.scope_spans for span in scope.spans]
            self._news.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace: str) -> list[Span]:
        """Return the spans of a trace that have come; of "": all."""
        return [span for span in self.spans if trace in ("", span.trace)]

    def named(self, *names: str, trace: str = "") -> dict[str, Span]:
        """Wait until spans of a trace with these names have come, and return one of each."""
        with self._news:
            assert self._news.wait_for(lambda: set(names) <= {span.name for span in self.of(trace)}, LIMIT), self.spans
            return {span.name: span for span in self.of(trace)}


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector."""
    collecting, server = Collector(), grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collecting, server)
    collecting.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collecting
    finally:
        server.stop(None).wait(LIMIT)


def _span(service: str, span: Any) -> Span:
    return Span(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [event.name for event in span.events],
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
