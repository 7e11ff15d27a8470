"""Engines that join and leave while the gateway runs."""

from __future__ import annotations

import asyncio

import pytest
from headrace_gateway.engines.pool import EnginePool
from headrace_gateway.options import EngineAddress
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1.session_pb2 import OwnerUsage
from support.clocks.waiting import LIMIT, ends
from unit.gateway.conftest import until
from unit.gateway.failures import failing
from unit.gateway.placing import all_placed, placed


class Changing:
    """A membership whose list the test sets."""

    def __init__(self) -> None:
        self.lists: asyncio.Queue[list[EngineAddress]] = asyncio.Queue()

    def set(self, **engines: str) -> None:
        self.lists.put_nowait([EngineAddress.parse(f"{name}={address}") for name, address in engines.items()])

    async def follow(self, apply) -> None:
        while True:
            apply(await self.lists.get())


@pytest.fixture
async def members(world, first):
    """Decides which engines the gateway has; the first one to begin with."""
    front = await world.gateway(e1=first)
    members = Changing()
    members.front = front
    members.pool = front.gateway.pool
    task = asyncio.create_task(members.follow(front.gateway.pool._apply))
    yield members
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def listed(members, *names: str) -> None:
    async with ends("the list is not followed"):
        while [engine.name for engine in members.pool.engines] != list(names):
            await members.pool.changed().wait()
    await members.pool.settle()


async def test_an_engine_that_joins_takes_requests(members, first, second):
    members.set(e1=first.address, e2=second.address)
    await listed(members, "e1", "e2")
    assert set(await all_placed(members.front, 4)) == {"e1", "e2"}


async def test_one_that_leaves_gets_nothing_new_but_is_asked(members, first, second):
    answer = await members.front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="Hi"))
    handle = answer.request.handle
    members.set(e2=second.address)
    await listed(members, "e2")
    assert await placed(members.front) == "e2"
    state = await members.front.requests.GetRequest(wire.GetRequestRequest(handle=handle))
    assert state.request.request.handle == handle
    members.set(e1=first.address, e2=second.address)
    await listed(members, "e1", "e2")
    assert set(await all_placed(members.front, 4)) == {"e1", "e2"}


async def test_one_that_left_is_forgotten_once_it_is_lost(members, first, second):
    handle = f"e1/{first.instance_id}/0123456789abcdef0123456789abcdef"
    members.set(e2=second.address)
    await listed(members, "e2")
    await first.stop()
    engine = members.pool.named("e1")
    async with ends("the engine that left is not forgotten"):
        while members.pool.has("e1"):
            engine.wake.set()
            await asyncio.sleep(0.01)
    failure = await failing(members.front.requests.GetRequest(wire.GetRequestRequest(handle=handle)))
    assert failure.reason == "UNKNOWN_ENGINE"


async def test_a_name_at_another_address_is_another_engine(members, first, second):
    old = members.pool.named("e1")
    members.set(e1=second.address)
    async with ends("the engine is not replaced"):
        while (changed := members.pool.changed()) and members.pool.named("e1") is old:
            await changed.wait()
    await members.pool.settle()
    assert await placed(members.front) == "e1"
    assert second.asked("StartRequest")
    assert not first.asked("StartRequest")


async def test_a_gateway_starts_though_its_source_is_out_of_reach():
    pool = EnginePool(Changing(), interval=3600.0, timeout=0.01)
    async with asyncio.timeout(LIMIT):
        await pool.start()
        await pool.settle()
    assert pool.engines == ()
    await pool.close()


@pytest.mark.parametrize("taken", [False, True])
async def test_a_release_succeeds_though_its_engine_goes_meanwhile(members, first, second, monkeypatch, taken):
    """It has left the list for good, or another engine has taken its name."""

    async def silent(request, context):
        await asyncio.Event().wait()

    first.script["ReleaseRequest"] = silent
    answer = await members.front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="Hi"))
    release = wire.ReleaseRequestRequest(handle=answer.request.handle)
    releasing = asyncio.ensure_future(members.front.requests.ReleaseRequest(release))
    await until(first, lambda: bool(first.asked("ReleaseRequest")))
    engine = members.pool.named("e1")
    if taken:
        members.set(e1=second.address)
    else:
        monkeypatch.setattr("headrace_gateway.engines.pool.LEAVING_SECONDS", 0.0)
        members.set(e2=second.address)
        await listed(members, "e2")
        engine.wake.set()
    assert await asyncio.wait_for(releasing, LIMIT) == wire.ReleaseRequestResponse()
    assert not members.pool.polls(engine)


async def test_a_stream_of_an_engine_that_goes_fails_as_such(members, first, second):
    async def silent(request, context):
        await asyncio.Event().wait()

    first.script["GeneratedElements"] = silent
    answer = await members.front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="Hi"))
    request = wire.GeneratedElementsRequest(handle=answer.request.handle)
    reading = asyncio.ensure_future(members.front.requests.GeneratedElements(request).read())
    await until(first, lambda: bool(first.asked("GeneratedElements")))
    members.set(e1=second.address)
    assert (await failing(reading)).reason == "ENGINE_UNREACHABLE"


async def test_an_engine_inherits_no_use_of_its_name(members, second):
    uses = members.front.gateway.access.uses
    uses.update("e1", [OwnerUsage(owner="ann", requests=3)])
    members.set(e1=second.address)
    await until(second, lambda: not uses.total("ann").requests)
