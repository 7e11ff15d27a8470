"""WatchModel through the gateway: the engines' streams, merged."""

from __future__ import annotations

import grpc
import pytest
from headrace_gateway.options import EngineAddress
from headrace_proto.v1 import model_service_pb2 as wire
from support.scripted.engine_answers import INITIAL, RELEASED, RUNNING, refuse
from unit.gateway.conftest import until
from unit.gateway.failures import failing

UNSPECIFIED = 0


@pytest.fixture
async def first(world):
    return await world.engine(smol=INITIAL)


@pytest.fixture
async def second(world):
    return await world.engine(smol=INITIAL)


@pytest.fixture
async def front(world, first, second):
    return await world.gateway(poll_interval=0.05, e1=first, e2=second)


def watch(front, **fields):
    return front.models.WatchModel(wire.WatchModelRequest(**fields))


async def next_state(stream):
    message = await stream.read()
    return None if message is grpc.aio.EOF else (message.model.engine, message.model.state)


async def until_seen(stream, *wanted):
    """Read until everything wanted was seen; return all that was."""
    reported = []
    while not set(wanted) <= set(reported):
        reported.append(await next_state(stream))
        assert reported[-1] is not None
    return reported


async def test_present_states_first_then_changes_of_any_engine(front):
    stream = watch(front, model_name="smol")
    assert {await next_state(stream), await next_state(stream)} == {("e1", INITIAL), ("e2", INITIAL)}
    await front.models.StartModel(wire.StartModelRequest(model_name="smol", engine_ids=["e2"]))
    await until_seen(stream, ("e2", RUNNING))


async def test_it_ends_when_the_model_is_released_everywhere(front, first, second):
    stream = watch(front, model_name="smol")
    await until_seen(stream, ("e1", INITIAL), ("e2", INITIAL))
    for name in ("e1", "e2"):
        await front.models.ReleaseModel(wire.ReleaseModelRequest(model_name="smol", engine_ids=[name]))
        await until_seen(stream, (name, RELEASED))
    assert await next_state(stream) is None
    assert (await stream.code()) is grpc.StatusCode.OK


async def test_only_the_engines_named_are_watched(front, second):
    stream = watch(front, model_name="smol", engine_ids=["e1"])
    assert await next_state(stream) == ("e1", INITIAL)
    assert not second.asked("WatchModel")
    assert (await failing(watch(front, model_name="smol", engine_ids=["e9"]))).reason == "UNKNOWN_ENGINE"


async def test_an_engine_lost_meanwhile_is_told_and_watched_again(front, first):
    stream = watch(front, model_name="smol")
    await until_seen(stream, ("e1", INITIAL), ("e2", INITIAL))
    await first.stop()
    assert await next_state(stream) == ("e1", UNSPECIFIED)
    first.models["smol"] = RUNNING
    await first.start()
    await until_seen(stream, ("e1", RUNNING))


async def test_an_engine_that_shuts_down_is_told_once(front, first):
    stream = watch(front, model_name="smol", engine_ids=["e1"])
    await until_seen(stream, ("e1", INITIAL))

    async def draining(request, context):
        await refuse(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")

    first.script["WatchModel"] = draining
    await first.stop()
    await first.start()
    await until(first, lambda: len(first.asked("WatchModel")) > 3)
    del first.script["WatchModel"]
    first.models["smol"] = RUNNING
    assert [await next_state(stream), await next_state(stream)] == [("e1", UNSPECIFIED), ("e1", RUNNING)]


async def test_an_engine_returning_without_the_model_has_released_it(front, first):
    stream = watch(front, model_name="smol", engine_ids=["e1"])
    await until_seen(stream, ("e1", INITIAL))
    await first.stop()
    first.models.clear()
    await first.start()
    await until_seen(stream, ("e1", UNSPECIFIED), ("e1", RELEASED))
    assert await next_state(stream) is None


async def test_engines_without_the_model_are_left_out(front, first):
    first.models.clear()
    stream = watch(front, model_name="smol")
    assert await next_state(stream) == ("e2", INITIAL)
    assert not first.asked("WatchModel")


async def test_a_model_that_no_engine_has_is_unknown(front):
    assert (await failing(watch(front, model_name="none"))).reason == "UNKNOWN_MODEL"


async def test_without_a_name_models_installed_later_are_told(front, first):
    stream = watch(front)
    await until_seen(stream, ("e1", INITIAL), ("e2", INITIAL))
    first.models["late"] = RUNNING
    first.note()
    await until_seen(stream, ("e1", RUNNING))


async def test_a_watch_of_all_models_has_no_end_of_its_own(front, first):
    async def short(request, context):
        await context.write(wire.WatchModelResponse(model=first._info("smol")))
        del first.script["WatchModel"]

    first.script["WatchModel"] = short
    stream = watch(front, engine_ids=["e1"])
    assert await next_state(stream) == ("e1", INITIAL)
    assert await next_state(stream) == ("e1", INITIAL)
    assert len(first.asked("WatchModel")) == 2


async def test_a_client_that_leaves_ends_the_engines_streams(front, first, second):
    stream = watch(front, model_name="smol")
    await until_seen(stream, ("e1", INITIAL), ("e2", INITIAL))
    stream.cancel()
    await until(first, lambda: "WatchModel" in first.cancelled)
    await until(second, lambda: "WatchModel" in second.cancelled)


class Joining:
    """A gateway whose list of engines the test sets."""

    def __init__(self, front):
        self.pool = front.gateway.pool

    def list(self, **engines):
        self.pool._apply([EngineAddress.parse(f"{name}={engine.address}") for name, engine in engines.items()])


@pytest.fixture
async def alone(world, first):
    return await world.gateway(poll_interval=0.05, e1=first)


async def test_an_engine_that_joins_is_watched(alone, first, second):
    stream = watch(alone, model_name="smol")
    assert await next_state(stream) == ("e1", INITIAL)
    Joining(alone).list(e1=first, e2=second)
    await until_seen(stream, ("e2", INITIAL))
    await alone.models.ReleaseModel(wire.ReleaseModelRequest(model_name="smol", engine_ids=["e1"]))
    await until_seen(stream, ("e1", RELEASED))
    await alone.models.StartModel(wire.StartModelRequest(model_name="smol"))
    await until_seen(stream, ("e2", RUNNING))
    await alone.models.StopModel(wire.StopModelRequest(model_name="smol"))
    await alone.models.ReleaseModel(wire.ReleaseModelRequest(model_name="smol"))
    await until_seen(stream, ("e2", RELEASED))
    assert await next_state(stream) is None


async def test_an_engine_that_gets_the_model_later_is_watched(front, first):
    del first.models["smol"]
    stream = watch(front, model_name="smol")
    assert await next_state(stream) == ("e2", INITIAL)
    first.models["smol"] = RUNNING
    await until_seen(stream, ("e1", RUNNING))


async def test_none_that_joins_is_watched_where_engines_are_named(alone, first, second):
    stream = watch(alone, model_name="smol", engine_ids=["e1"])
    assert await next_state(stream) == ("e1", INITIAL)
    Joining(alone).list(e1=first, e2=second)
    await alone.seen("e2")
    await alone.models.ReleaseModel(wire.ReleaseModelRequest(model_name="smol", engine_ids=["e1"]))
    await until_seen(stream, ("e1", RELEASED))
    assert await next_state(stream) is None
    assert not second.asked("WatchModel")


async def test_a_watch_of_all_models_follows_the_list(alone, first, second):
    stream = watch(alone)
    assert await next_state(stream) == ("e1", INITIAL)
    Joining(alone).list(e2=second)
    await until_seen(stream, ("e2", INITIAL))
    await first.stop()
    await until_seen(stream, ("e1", UNSPECIFIED))
    second.models["smol"] = RUNNING
    second.note()
    await until_seen(stream, ("e2", RUNNING))


async def test_a_watch_ends_with_the_last_engine_that_leaves(alone, first):
    stream = watch(alone, model_name="smol")
    assert await next_state(stream) == ("e1", INITIAL)
    Joining(alone).list()
    await first.stop()
    assert await next_state(stream) == ("e1", UNSPECIFIED)
    assert await next_state(stream) is None
