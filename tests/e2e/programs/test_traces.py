"""Traces from a client over a gateway to an engine, each a process, as a collector gets them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client
from headrace.errors import NotFoundError
from headrace_proto.pure.tracing import HEADER
from support.clocks.waiting import LIMIT
from support.models.tiny_models import make_tiny_llama
from support.servers.collector import Collector, collector
from support.servers.http_servers import HttpGateway, http_gateway
from support.servers.processes import Server, engine_server

CLIENT = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from headrace import AsyncClient, Client

provider = TracerProvider(resource=Resource.create({"service.name": "app"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
FIELDS = {"max_new_tokens": 8, "ignore_eos": True, "do_sample": False}

def threads(address):
    with trace.get_tracer("app").start_as_current_span("app"), Client(address) as client:
        handle, queue = client.start_request("tiny", "Once upon", **FIELDS)
        list(queue)

async def tasks(address):
    with trace.get_tracer("app").start_as_current_span("app"):
        async with AsyncClient(address) as client:
            handle, queue = await client.start_request("tiny", "Once upon", **FIELDS)
            async for _ in queue:
                pass

threads(sys.argv[2]) if sys.argv[1] == "threads" else asyncio.run(tasks(sys.argv[2]))
provider.shutdown()
"""
NAMES = ("app", "client.start", "gateway.start", "engine.request", "engine.queue", "engine.prefill", "engine.decode")
TRACE, OTHER = "0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319d"


@pytest.fixture(scope="module")
def collecting() -> Iterator[Collector]:
    with collector() as collecting:
        yield collecting


@pytest.fixture(scope="module")
def servers(collecting: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, HttpGateway]]:
    folder = make_tiny_llama(tmp_path_factory.mktemp("traces") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collecting.address)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with engine_server("e1") as engine, http_gateway({"e1": engine.address}) as gateway:
            with Client(gateway.address) as client:
                client.install_model("tiny", path=str(folder), max_batch=4, num_threads=1)
                client.start_model("tiny")
            yield engine, gateway


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_request_is_one_tree_of_spans(kind: str, collecting: Collector, servers: tuple[Server, HttpGateway]) -> None:
    collecting.spans.clear()
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collecting.address}
    command = [sys.executable, "-c", CLIENT, kind, servers[1].address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    trace = collecting.named("app")["app"].trace
    found = collecting.named(*NAMES, trace=trace)
    assert len(collecting.of(trace)) == len(NAMES), "a span for each token"
    for child, parent in zip(NAMES[1:4], NAMES[:3], strict=True):
        assert found[child].parent == found[parent].id, child
    assert {found[name].parent for name in NAMES[4:]} == {found["engine.request"].id}
    services = [found[name].service for name in NAMES[:4]]
    assert services == ["app", "app", "headrace-gateway", "headrace-engine"]
    queue, prefill, decode = (found[name] for name in NAMES[4:])
    assert queue.begun <= queue.ended == prefill.begun <= prefill.ended == decode.begun <= decode.ended
    assert found["engine.request"].attributes["gen_ai.usage.output_tokens"] == 8
    assert found["gateway.start"].attributes["headrace.model"] == "tiny"


def test_a_trace_of_http_goes_on(collecting: Collector, servers: tuple[Server, HttpGateway]) -> None:
    traceparent = f"00-{TRACE}-b7ad6b7169203331-01"
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 4}
    status, _, _ = servers[1].ask("POST", "/v1/completions", body, **{HEADER: traceparent})
    assert status == 200
    found = collecting.named("gateway.start", "engine.request", trace=TRACE)
    assert found["gateway.start"].parent == "b7ad6b7169203331"


def test_log_lines_name_the_trace(servers: tuple[Server, HttpGateway]) -> None:
    traceparent = f"00-{OTHER}-b7ad6b7169203331-01"
    body = {"model": "none", "prompt": "Once"}
    status, _, _ = servers[1].ask("POST", "/v1/completions", body, **{HEADER: traceparent})
    assert status == 404
    servers[1].server.wait_event("request_refused", trace_id=OTHER)
    with Client(servers[1].address) as client, pytest.raises(NotFoundError):
        client.start_request("none", "x")
    refused = servers[1].server.wait_event("request_refused", method="StartRequest")
    assert "trace_id" not in refused, "a trace of another call"


@pytest.mark.parametrize(
    "module", ["headrace", "headrace_gateway.server", "headrace_gateway.http.server", "headrace_engine.service.server"]
)
def test_without_a_collector_nothing_is_imported(module: str) -> None:
    script = f"import {module}, sys; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_server_without_the_extra_says_so(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from headrace_proto.server.logs import configure_service\n"
        "from headrace_proto.server.traces import start_tracing\n"
        "configure_service('headrace_proto', json=True, level='info')\n"
        "start_tracing('headrace-engine')()"
    )
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert "tracing_not_installed" in done.stderr
    assert "install headrace-engine with its extra otel" in done.stderr
