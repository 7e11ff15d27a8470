"""Requests that no handle leads to: GetRequest by request_id, SyncRequest by model."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from headrace_proto.v1 import engine_service_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from support.scripted.engine_answers import RUNNING
from unit.gateway.conftest import until
from unit.gateway.failures import failing

NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class TestByRequestId:
    """GetRequest by request_id asks all engines."""

    @pytest.fixture
    async def two(self, world):
        engines = [await world.engine(smol=RUNNING), await world.engine(smol=RUNNING)]
        return *engines, await world.gateway(e1=engines[0], e2=engines[1])

    async def ask(self, front, **fields):
        return await front.requests.GetRequest(wire.GetRequestRequest(**fields))

    async def test_the_engine_that_knows_it_answers(self, two):
        _, second, front = two
        second.hold("r7")
        found = await self.ask(front, request_id="r7")
        assert found.request.request.handle.startswith("e2/")

    async def test_the_highest_handover_answers(self, two):
        first, second, front = two
        first.hold("r7", handover=2)
        second.hold("r7", handover=1)
        found = await self.ask(front, request_id="r7")
        assert (found.request.request.handover, found.request.request.handle[:3]) == (2, "e1/")

    async def test_position_and_wait_go_to_that_engine_only(self, two):
        first, second, front = two
        second.hold("r7")
        request = wire.GetRequestRequest(request_id="r7", from_position=1)
        request.wait.FromSeconds(3)
        await front.requests.GetRequest(request)
        assert second.asked("GetRequest")[-1].request == request
        assert all(not heard.request.HasField("wait") for heard in first.asked("GetRequest"))

    async def test_another_owners_is_unknown(self, two):
        _, second, front = two
        second.hold("r7", owner="ann")
        failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(request_id="r7")))
        assert failure.reported == (NOT_FOUND, "UNKNOWN_REQUEST")

    async def test_of_a_released_one_its_handle_and_handover_are_told(self, two):
        first, second, front = two
        first.hold("r7")
        held = second.hold("r7", handover=1)
        for engine in (first, second):
            engine.released["r7", int(engine is second)] = engine.requests.popitem()[1]
        failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(request_id="r7")))
        assert failure.reported == (NOT_FOUND, "UNKNOWN_REQUEST")
        assert failure.facts == {"handle": f"e2{held.handle.removeprefix('self')}", "handover": "1"}

    async def test_a_silent_engine_leaves_an_id_undecided(self, two):
        first, second, front = two
        first.hold("r1")
        await second.stop()
        await front.gateway.pool.refresh()
        failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(request_id="r7")))
        assert failure.reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
        assert failure.facts["engine"] == "e2"
        found = await self.ask(front, request_id="r1")
        assert found.request.request.handle.startswith("e1/")


class TestSyncOfAModel:
    """SyncRequest by model waits at all engines that have it."""

    async def test_it_ends_when_the_requests_of_all_engines_ended(self, world):
        first, second = await world.engine(smol=RUNNING), await world.engine(smol=RUNNING)
        other = await world.engine(big=RUNNING)
        front = await world.gateway(e1=first, e2=second, e3=other)
        one, two = first.hold("r1"), second.hold("r2")
        call = asyncio.ensure_future(front.requests.SyncRequest(wire.SyncRequestRequest(model_name="smol")))
        await until(first, lambda: first.asked("SyncRequest"))
        await until(second, lambda: second.asked("SyncRequest"))
        one.ended.set()
        await front.facts.GetServerInfo(engine_service_pb2.GetServerInfoRequest())
        assert not call.done()
        two.ended.set()
        answer = await call
        assert {state.request.handle[:3] for state in answer.requests} == {"e1/", "e2/"}

    async def test_a_model_that_no_engine_has_is_unknown(self, world):
        front = await world.gateway(e1=await world.engine(), e2=await world.engine())
        failure = await failing(front.requests.SyncRequest(wire.SyncRequestRequest(model_name="smol")))
        assert failure.reported == (NOT_FOUND, "UNKNOWN_MODEL")

    async def test_a_silent_engine_that_had_the_model_is_reported(self, world):
        first, second = await world.engine(smol=RUNNING), await world.engine(smol=RUNNING)
        front = await world.gateway(e1=first, e2=second)
        first.hold("r1").ended.set()
        await second.stop()
        await front.gateway.pool.refresh()
        failure = await failing(front.requests.SyncRequest(wire.SyncRequestRequest(model_name="smol")))
        assert failure.reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")

    async def test_an_engine_lost_during_a_sync_ends_it_at_the_others(self, world):
        first, second = await world.engine(smol=RUNNING), await world.engine(smol=RUNNING)
        front = await world.gateway(e1=first, e2=second)
        first.hold("r1")
        second.hold("r2")
        call = asyncio.ensure_future(failing(front.requests.SyncRequest(wire.SyncRequestRequest(model_name="smol"))))
        await until(first, lambda: first.asked("SyncRequest"))
        await until(second, lambda: second.asked("SyncRequest"))
        await second.stop()
        assert (await call).reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
        await until(first, lambda: "SyncRequest" in first.cancelled)

    async def test_an_engine_that_never_had_the_model_does_not_matter(self, world):
        first, second = await world.engine(smol=RUNNING), await world.engine(big=RUNNING)
        front = await world.gateway(e1=first, e2=second)
        first.hold("r1").ended.set()
        await second.stop()
        await front.gateway.pool.refresh()
        answer = await front.requests.SyncRequest(wire.SyncRequestRequest(model_name="smol"))
        assert len(answer.requests) == 1
