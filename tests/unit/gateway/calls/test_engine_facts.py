"""What the gateway tells of itself and its engines: GetServerInfo, statistics, health, reflection."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from headrace_proto.v1 import engine_service_pb2 as wire
from headrace_proto.v1 import model_service_pb2 as model_wire
from support.clocks.waiting import ends
from support.scripted.engine_answers import INITIAL, RUNNING
from unit.gateway.conftest import until
from unit.gateway.failures import failing

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
REQUESTS = "headrace.v1.RequestService"
MODELS = "headrace.v1.ModelService"


@pytest.fixture
async def second(world):
    return await world.engine(smol=INITIAL, big=RUNNING)


@pytest.fixture
async def front(world, first, second):
    return await world.gateway(e1=first, e2=second)


class TestServerInfo:
    async def test_a_gateway_tells_its_role_and_its_engines(self, front, first, second):
        second.draining = True
        await front.gateway.pool.refresh()
        info = await front.facts.GetServerInfo(wire.GetServerInfoRequest())
        assert (info.role, info.name, info.api_version) == (wire.SERVER_ROLE_GATEWAY, "gateway", "1.0")
        assert info.instance_id
        assert info.build
        assert info.start_time.seconds
        assert not info.draining
        one, two = info.engines
        assert (one.engine, one.reachable, one.instance_id, one.draining) == ("e1", True, first.instance_id, False)
        assert (two.engine, two.draining, two.build, two.api_version) == ("e2", True, "scripted", "1.0")

    async def test_an_engine_that_is_gone_is_told_with_its_last_instance(self, front, first):
        await first.stop()
        await front.gateway.pool.refresh()
        (one, two) = (await front.facts.GetServerInfo(wire.GetServerInfoRequest())).engines
        assert (one.reachable, one.instance_id, two.reachable) == (False, first.instance_id, True)

    async def test_an_engine_never_reached_has_no_instance(self, world, first):
        front = await world.gateway(e1=first, e2="127.0.0.1:1")
        two = (await front.facts.GetServerInfo(wire.GetServerInfoRequest())).engines[1]
        assert (two.engine, two.reachable, two.instance_id) == ("e2", False, "")

    async def test_features_are_those_that_every_engine_has(self, front, first):
        first.features = ["generate", "session", "guided"]
        await front.gateway.pool.refresh()
        assert (await front.facts.GetServerInfo(wire.GetServerInfoRequest())).features == ["generate", "session"]

    @pytest.mark.parametrize("misfit", ["gateway", "version"])
    async def test_a_server_that_is_none_of_its_engines_is_not_used(self, front, first, misfit):
        if misfit == "gateway":
            first.role = wire.SERVER_ROLE_GATEWAY
        else:
            first.api_version = "2.0"
        await front.gateway.pool.refresh()
        view = front.gateway.pool.named("e1").view
        assert not view.reachable
        assert misfit in view.problem


class TestStatistics:
    async def test_those_of_all_engines_under_their_names_in_the_list(self, front, first):
        first.running = 3
        answer = await front.facts.GetEngineStat(wire.GetEngineStatRequest())
        assert [(stat.engine, stat.model_name, stat.running) for stat in answer.stats] == [
            ("e1", "smol", 3),
            ("e2", "smol", 0),
            ("e2", "big", 0),
        ]

    async def test_of_one_model_where_it_is(self, front):
        answer = await front.facts.GetEngineStat(wire.GetEngineStatRequest(model_name="big"))
        assert [stat.engine for stat in answer.stats] == ["e2"]
        failure = await failing(front.facts.GetEngineStat(wire.GetEngineStatRequest(model_name="x")))
        assert failure.reason == "UNKNOWN_MODEL"

    async def test_engines_that_do_not_answer_are_left_out_unless_named(self, front, first):
        await first.stop()
        answer = await front.facts.GetEngineStat(wire.GetEngineStatRequest())
        assert {stat.engine for stat in answer.stats} == {"e2"}
        failure = await failing(front.facts.GetEngineStat(wire.GetEngineStatRequest(engine_ids=["e2", "e1"])))
        assert (failure.reason, failure.facts["engine"]) == ("ENGINE_UNREACHABLE", "e1")

    async def test_engine_ids_choose_and_unknown_ones_are_refused(self, front, first):
        answer = await front.facts.GetEngineStat(wire.GetEngineStatRequest(engine_ids=["e2"]))
        assert {stat.engine for stat in answer.stats} == {"e2"}
        failure = await failing(front.facts.GetEngineStat(wire.GetEngineStatRequest(engine_ids=["e9"])))
        assert failure.reason == "UNKNOWN_ENGINE"

    async def test_a_watch_tells_them_again_and_again(self, front, first):
        request = wire.WatchEngineStatRequest(model_name="smol", engine_ids=["e1"])
        request.interval.FromMilliseconds(100)
        stream = front.facts.WatchEngineStat(request)
        assert [(stat.engine, stat.running) for stat in (await stream.read()).stats] == [("e1", 0)]
        first.running = 4
        while (await stream.read()).stats[0].running != 4:
            pass
        stream.cancel()

    async def test_an_interval_too_short_is_refused(self, front):
        request = wire.WatchEngineStatRequest()
        request.interval.FromMilliseconds(99)
        failure = await failing(front.facts.WatchEngineStat(request))
        assert failure.fields == ["interval"]


class TestHealth:
    async def check(self, front, service):
        return (await front.health.Check(health_pb2.HealthCheckRequest(service=service))).status

    async def watch_until(self, stream, status):
        """Reads until a status is told; a watch tells each change, so it needs no polling."""
        async with ends(f"the status is never {status}"):
            while (await stream.read()).status != status:
                pass

    async def test_bc177_requests_are_served_while_an_engine_runs_a_model(self, world):
        engine = await world.engine(smol=INITIAL)
        front = await world.gateway(e1=engine)
        streams = [front.health.Watch(health_pb2.HealthCheckRequest(service=service)) for service in ("", REQUESTS)]
        for stream in streams:
            await self.watch_until(stream, NOT_SERVING)
        await front.models.StartModel(model_wire.StartModelRequest(model_name="smol"))
        for stream in streams:
            await self.watch_until(stream, SERVING)
        await front.models.StopModel(model_wire.StopModelRequest(model_name="smol"))
        for stream in streams:
            await self.watch_until(stream, NOT_SERVING)
            stream.cancel()

    async def test_bc177_models_are_served_once_an_engine_answers(self, world):
        engine = await world.engine()
        await engine.stop()
        front = await world.gateway(poll_interval=0.05, e1=engine)
        assert await self.check(front, MODELS) == NOT_SERVING
        stream = front.health.Watch(health_pb2.HealthCheckRequest(service=MODELS))
        await engine.start()
        await self.watch_until(stream, SERVING)
        assert await self.check(front, REQUESTS) == NOT_SERVING
        stream.cancel()

    async def test_bc177_an_unknown_service_is_not_found(self, front):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.check(front, "nonsense")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    async def test_an_engine_that_drains_counts_no_more(self, world, first):
        front = await world.gateway(poll_interval=0.05, e1=first)
        stream = front.health.Watch(health_pb2.HealthCheckRequest(service=REQUESTS))
        await self.watch_until(stream, SERVING)
        first.draining = True
        await self.watch_until(stream, NOT_SERVING)
        stream.cancel()

    async def test_a_model_whose_core_is_being_replaced_counts_no_more(self, world, first):
        front = await world.gateway(poll_interval=0.05, e1=first)
        stream = front.health.Watch(health_pb2.HealthCheckRequest(service=REQUESTS))
        await self.watch_until(stream, SERVING)
        first.restarting = {"smol"}
        await self.watch_until(stream, NOT_SERVING)
        first.restarting.clear()
        await self.watch_until(stream, SERVING)
        stream.cancel()

    async def test_bc175_an_engine_that_freezes_is_told(self, world, first):
        """A frozen process keeps its connections, so only its silence tells."""
        front = await world.gateway(poll_interval=0.05, poll_timeout=1.0, e1=first)
        stream = front.health.Watch(health_pb2.HealthCheckRequest(service=REQUESTS))
        await self.watch_until(stream, SERVING)
        thaw = asyncio.Event()

        async def frozen(request, context):
            await thaw.wait()
            return await type(first).GetServerInfo(first, request, context)

        first.script["GetServerInfo"] = frozen
        await self.watch_until(stream, NOT_SERVING)
        failure = await failing(front.facts.Tokenize(wire.TokenizeRequest(model_name="smol")))
        assert failure.reason == "NO_ENGINE"
        thaw.set()
        await self.watch_until(stream, SERVING)
        stream.cancel()

    async def test_bc191_an_engine_that_comes_back_is_used_again(self, world, first):
        front = await world.gateway(poll_interval=0.05, e1=first)
        for _ in range(2):
            await first.stop()
            await front.seen("e1", reachable=False)
            await first.start()
            await front.seen("e1")
            await front.facts.Tokenize(wire.TokenizeRequest(model_name="smol"))


async def test_bc183_reflection_lists_and_describes_the_services(front):
    stub = reflection_pb2_grpc.ServerReflectionStub(front.channel)

    async def ask(**question):
        async def questions():
            yield reflection_pb2.ServerReflectionRequest(**question)

        return await anext(aiter(stub.ServerReflectionInfo(questions())))

    listed = await ask(list_services="")
    names = {service.name for service in listed.list_services_response.service}
    assert {REQUESTS, MODELS, "headrace.v1.EngineService", "grpc.health.v1.Health"} <= names
    for symbol in ("headrace.v1.RequestService", "headrace.v1.RequestService.Generate", "headrace.v1.EndRecord"):
        described = await ask(file_containing_symbol=symbol)
        assert described.file_descriptor_response.file_descriptor_proto
    for symbol in ("headrace.v1.RequestService.Nonsense", "nonsense", "headrace.v1.Nonsense.Generate"):
        assert (await ask(file_containing_symbol=symbol)).error_response.error_code == 5


async def test_polls_are_shared_by_those_who_wait_for_one(front, first):
    engine = front.gateway.pool.named("e1")
    held, before = asyncio.Event(), first.polls()

    async def slow(request, context):
        await held.wait()
        return await type(first).GetServerInfo(first, request, context)

    first.script["GetServerInfo"] = slow
    running = asyncio.ensure_future(engine.refresh())
    await until(first, lambda: first.polls() == before + 1)
    waiting = [asyncio.ensure_future(engine.refresh()) for _ in range(20)]
    held.set()
    await asyncio.gather(running, *waiting)
    assert first.polls() == before + 2, "one that ran already, and one for all that asked meanwhile"
