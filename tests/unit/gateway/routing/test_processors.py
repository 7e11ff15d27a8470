"""Engines with different logits processors: a request goes where all of its own are."""

from __future__ import annotations

import grpc
import pytest
from headrace_proto.v1 import request_service_pb2 as wire
from support.scripted.engine_answers import RUNNING, STARTING, STOPPED, refuse
from unit.gateway.failures import failing

INVALID = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
FIELD = "config.logits_processors"


def asking(kind, *names):
    request = kind(model_name="smol", text="Hello")
    for name in names:
        request.config.logits_processors.add(name=name)
    return request


def start(front, *names):
    return front.requests.StartRequest(asking(wire.StartRequestRequest, *names))


async def placed(front, *names):
    """Name of the engine that a start went to."""
    return (await start(front, *names)).request.handle.partition("/")[0]


@pytest.fixture
async def first(world):
    engine = await world.engine(smol=RUNNING)
    engine.processors = ("both", "steer")
    return engine


@pytest.fixture
async def second(world):
    engine = await world.engine(smol=RUNNING)
    engine.processors = ("both", "damp")
    return engine


@pytest.fixture
async def front(world, first, second):
    return await world.gateway(e1=first, e2=second)


async def test_a_request_goes_where_all_its_processors_are(front, first):
    first.running = 50
    await front.gateway.pool.refresh()
    assert [await placed(front, "steer", "both", "steer") for _ in range(3)] == ["e1"] * 3
    assert await placed(front, "damp") == "e2"
    assert {await placed(front, "both") for _ in range(60)} == {"e1", "e2"}


async def test_generate_goes_there_too(front, first):
    first.running = 50
    await front.gateway.pool.refresh()
    stream = front.requests.Generate(asking(wire.GenerateRequest, "steer"))
    messages = [message async for message in stream]
    assert messages[0].request.handle.startswith("e1/")


async def test_names_that_no_engine_has_are_all_told(front, first, second):
    failure = await failing(start(front, "both", "gone", "steer", "lost", "gone"))
    assert failure.reported == INVALID
    assert failure.fields == [f"{FIELD}[1].name"]
    assert failure.message == (
        f'{FIELD}[1].name = "gone" is not available on any engine that runs model "smol", nor is "lost"; '
        "allowed: both, damp, steer"
    )
    assert (await failing(front.requests.Generate(asking(wire.GenerateRequest, "gone")))).reported == INVALID
    assert not first.asked("StartRequest") + second.asked("StartRequest")


async def test_processors_spread_over_engines_are_refused_with_where(front):
    failure = await failing(start(front, "steer", "damp"))
    assert failure.reported == INVALID
    assert failure.message == (
        f'{FIELD} names "steer", "damp": no engine that runs model "smol" has all of them; '
        "e1 has both, steer; e2 has both, damp"
    )


async def test_a_refusal_of_very_many_names_fits_into_trailers(front):
    failure = await failing(start(front, *(f"{number:0200d}" for number in range(2_000))))
    assert failure.reported == INVALID
    assert len(failure.message) < 1_100


async def test_an_engine_alone_says_itself_what_it_lacks(front, first, second):
    """It knows why: a name may be there and the backend unable to call it."""

    async def lacking(request, context):
        await refuse(context, *INVALID, message="needs a CUDA device")

    first.script["StartRequest"] = lacking
    second.models["smol"] = STOPPED
    await front.gateway.pool.refresh()
    assert (await failing(start(front, "kernel"))).message == "needs a CUDA device"


async def test_processors_of_an_absent_engine_are_worth_a_retry(front, first):
    first.draining = True
    await front.gateway.pool.refresh()
    assert (await failing(start(front, "steer"))).reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    await first.stop()
    await front.gateway.pool.refresh()
    assert (await failing(start(front, "steer"))).reported == (grpc.StatusCode.UNAVAILABLE, "NO_ENGINE")
    assert await placed(front, "damp") == "e2"


async def test_a_full_engine_is_not_replaced_by_one_without_processor(front, first, second):
    async def full(request, context):
        await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")

    first.script["StartRequest"] = full
    assert (await failing(start(front, "steer"))).reason == "QUEUE_FULL"
    assert not second.asked("StartRequest")


async def test_processors_of_a_restarted_engine_are_seen_at_once(front, second):
    second.processors = ("new",)
    assert await placed(front, "new") == "e2"


async def test_b4_a_starting_engine_may_have_the_missing_processor(world, first, second):
    first.models["smol"], first.wanted["smol"] = STARTING, RUNNING
    front = await world.gateway(e1=first, e2=second)
    failure = await failing(start(front, "steer"))
    assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "MODEL_STARTING")
    assert not second.asked("StartRequest")
    assert await placed(front, "damp") == "e2"
    first.models["smol"] = RUNNING
    assert await placed(front, "steer") == "e1"


async def test_b4_an_engine_alone_says_itself_what_it_lacks(world, first, second):
    first.models["smol"] = STOPPED
    front = await world.gateway(e1=first, e2=second)
    assert await placed(front, "steer") == "e2"
    assert second.asked("StartRequest")
