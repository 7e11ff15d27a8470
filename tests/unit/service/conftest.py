"""A real gRPC server in front of a scripted engine, all in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc
from headrace_engine.service.server import EngineServer
from headrace_proto.v1 import engine_service_pb2_grpc, model_service_pb2_grpc, request_service_pb2_grpc
from support.scripted.engine import ScriptedEngine


class Front:
    """A served engine and a client's stubs to it."""

    def __init__(self, engine: ScriptedEngine, server: EngineServer, address: str) -> None:
        self.engine, self.server, self.address = engine, server, address
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.requests = request_service_pb2_grpc.RequestServiceStub(self.channel)
        self.facts = engine_service_pb2_grpc.EngineServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def front(engine: ScriptedEngine) -> AsyncIterator[Front]:
    server = EngineServer(engine)
    address = server.listen("127.0.0.1:0")
    await server.start()
    front = Front(engine, server, address)
    yield front
    await front.channel.close()
    await server.stop(None)


@pytest.fixture
def log() -> Iterator[list[Any]]:
    """The events that were logged."""
    with structlog.testing.capture_logs() as events:
        yield events


def status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The rich status of a failed call, found where every gRPC library looks for it."""
    (found,) = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
    return status_pb2.Status.FromString(found)


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason in a failed call's ErrorInfo."""
    info = error_details_pb2.ErrorInfo()
    (found,) = [detail for detail in status_of(error).details if detail.Is(info.DESCRIPTOR)]
    found.Unpack(info)
    return info.reason


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    """The wrong fields that a failed call names."""
    request = error_details_pb2.BadRequest()
    found = [detail for detail in status_of(error).details if detail.Is(request.DESCRIPTOR)]
    for detail in found:
        detail.Unpack(request)
    return [violation.field for violation in request.field_violations]
