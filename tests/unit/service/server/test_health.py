"""Standard health follows the engine."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from headrace_engine.model_types import CoreLoss, ModelState
from headrace_engine.service.server import EngineServer
from headrace_proto.v1 import request_service_pb2
from support.clocks.waiting import happens
from support.scripted.engine import tokens

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
FOLLOWING = ["", "headrace.v1.RequestService"]
MODELS = "headrace.v1.ModelService"


async def check(front, service: str) -> int:
    return (await front.health.Check(HealthCheckRequest(service=service))).status


@pytest.mark.parametrize("service", FOLLOWING)
async def test_bc177_health_is_serving_while_a_model_runs(front, service):
    watch = front.health.Watch(HealthCheckRequest(service=service))
    assert (await watch.read()).status == NOT_SERVING
    front.engine.set_state(ModelState.STARTING)
    front.engine.set_state(ModelState.RUNNING)
    assert (await watch.read()).status == SERVING
    assert await check(front, service) == SERVING
    front.engine.set_state(ModelState.STOPPING)
    assert (await watch.read()).status == NOT_SERVING
    watch.cancel()


@pytest.mark.parametrize("service", FOLLOWING)
async def test_a_check_tells_what_holds_at_that_moment(front, service):
    """Not only once the change came by: whoever started a model and then checks sees that it runs."""
    assert await check(front, service) == NOT_SERVING
    for state, status in [(ModelState.RUNNING, SERVING), (ModelState.STOPPING, NOT_SERVING)]:
        front.engine.models["smol"] = replace(front.engine.models["smol"], state=state)
        assert await check(front, service) == status


async def test_health_is_not_serving_while_a_core_is_replaced(front):
    front.engine.set_state(ModelState.RUNNING)
    watch = front.health.Watch(HealthCheckRequest())
    while (await watch.read()).status != SERVING:
        pass
    front.engine.set_state(ModelState.RUNNING, core_loss=CoreLoss(1, "the core died", 100.5))
    assert (await watch.read()).status == NOT_SERVING
    assert await check(front, MODELS) == SERVING
    front.engine.set_state(ModelState.RUNNING, core_loss=None)
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_bc177_the_model_service_is_serving_once_up(front):
    assert await check(front, MODELS) == SERVING


async def test_bc177_an_unknown_name_is_not_found(front):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(front, "headrace.v1.NoService")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_model_that_runs_already_is_told_from_the_start(engine, front):
    engine.set_state(ModelState.RUNNING)
    watch = front.health.Watch(HealthCheckRequest())
    while (await watch.read()).status != SERVING:
        pass
    watch.cancel()


async def test_a_draining_engine_is_not_serving(front):
    front.engine.set_state(ModelState.RUNNING)
    watch = front.health.Watch(HealthCheckRequest())
    while (await watch.read()).status != SERVING:
        pass
    front.engine.draining = True
    front.engine.set_state(ModelState.RUNNING)
    assert (await watch.read()).status == NOT_SERVING
    watch.cancel()


async def test_a_draining_server_is_not_serving_whatever_its_models(front):
    front.engine.set_state(ModelState.RUNNING)
    await front.server.refuse()
    front.engine.set_state(ModelState.RUNNING)
    for service in (*FOLLOWING, MODELS):
        assert await check(front, service) == NOT_SERVING


async def test_streams_go_on_while_health_is_not_serving(front):
    front.engine.script = [tokens(0, 5), tokens(1, 6)]
    call = front.requests.GeneratedElements(request_service_pb2.GeneratedElementsRequest(handle="h"))
    await call.read()
    await front.server.refuse()
    assert list((await call.read()).elements.token_ids) == [6]


async def test_health_stops_following_when_the_server_stops(front):
    await front.server.stop(None)
    await happens(front.engine.closed["watch_model"], "the engine is watched on")


async def test_health_that_lost_the_engine_says_so(engine, log):
    async def broken(model_name: str):
        raise RuntimeError("no more views")
        yield

    engine.watch_model = broken
    server = EngineServer(engine)
    server.listen("127.0.0.1:0")
    await server.start()
    await server.stop(None)
    assert [event["event"] for event in log] == ["health_lost"]
