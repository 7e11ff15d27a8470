"""Calls that have no end of their own hold up no end of the server."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from headrace_engine.errors import Unavailable
from headrace_engine.service.endless import EndlessCalls
from headrace_proto.server.interceptor import WATCHES
from headrace_proto.v1 import engine_service_pb2, model_service_pb2
from support.clocks.clock import settle
from unit.service.conftest import reason_of

pytestmark = pytest.mark.timeout(60)

NOT_SERVING = HealthCheckResponse.NOT_SERVING


def watched(front, what: str):
    if what == "WatchModel":
        return front.models.WatchModel(model_service_pb2.WatchModelRequest())
    interval = {"seconds": 3600}
    return front.facts.WatchEngineStat(engine_service_pb2.WatchEngineStatRequest(interval=interval))


async def end_of(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
    return caught.value.code(), reason_of(caught.value)


@pytest.mark.parametrize("what", ["WatchModel", "WatchEngineStat"])
async def test_a_watch_ends_as_a_drain_begins(front, what):
    watch = watched(front, what)
    await watch.read()
    health = front.health.Watch(HealthCheckRequest())
    await health.read()
    await front.server.refuse()
    draining = (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert await end_of(watch) == draining
    assert await end_of(watched(front, what)) == draining
    assert not health.done()
    health.cancel()


async def test_health_and_reflection_end_with_the_server(front):
    """However long calls may take to end."""
    health = front.health.Watch(HealthCheckRequest())
    await health.read()
    reflection = ServerReflectionStub(front.channel).ServerReflectionInfo()
    await reflection.write(ServerReflectionRequest(list_services=""))
    await reflection.read()
    stopping = asyncio.create_task(front.server.stop(3600))
    for call in (health, reflection):
        assert await end_of(call) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    await stopping


async def test_a_client_that_leaves_a_watch_is_told_nothing(front, log):
    watch = watched(front, "WatchEngineStat")
    await watch.read()
    watch.cancel()
    assert await watch.code() is grpc.StatusCode.CANCELLED
    await asyncio.wait_for(front.server.stop(3600), 60)
    assert log == []


async def test_a_call_is_ended_once_it_has_written_its_message() -> None:
    """A status that is sent beside a message fails, and the call would never end."""
    endless, begun, written = EndlessCalls(), asyncio.Event(), asyncio.Event()

    class Slow:
        async def write(self, response: str) -> None:
            begun.set()
            await written.wait()

    async def call() -> None:
        with endless.entered("WatchModel"):
            await endless.write(Slow(), "a view")

    calling = asyncio.create_task(call())
    await begun.wait()
    endless.end(WATCHES)
    await settle()
    assert not calling.done()
    written.set()
    with pytest.raises(Unavailable, match="shutting down"):
        await calling
