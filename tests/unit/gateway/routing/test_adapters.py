"""Engines with different adapters: a request goes where its adapter is."""

from __future__ import annotations

import grpc
import pytest
from headrace_gateway.engines.lacked_adapters import LackedAdapters
from headrace_proto.v1 import request_service_pb2 as wire
from support.scripted.engine_answers import RUNNING, refuse
from unit.gateway.failures import failing

UNKNOWN = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_LORA")
FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


def start(front, adapter="sql", **fields):
    request = wire.StartRequestRequest(model_name="smol", text="Hello", **fields)
    request.config.lora_name = adapter
    return front.requests.StartRequest(request)


async def placed(front, *args, **fields):
    """Name of the engine that a start went to."""
    return (await start(front, *args, **fields)).request.handle.partition("/")[0]


def refuses(engine, failure=UNKNOWN, message="no such adapter"):
    """Script the starts of an engine; the answer of its own script comes back with `del`."""

    async def answer(request, context):
        await refuse(context, *failure, message=message)

    engine.script["StartRequest"] = answer
    engine.script["Generate"] = answer


@pytest.fixture
async def engines(world):
    return [await world.engine(smol=RUNNING) for _ in range(2)]


@pytest.fixture
async def front(world, engines):
    return await world.gateway(e1=engines[0], e2=engines[1])


async def test_a_request_goes_on_to_the_engine_that_has_its_adapter(front, engines):
    refuses(engines[0])
    assert {await placed(front) for _ in range(6)} == {"e2"}


async def test_an_engine_that_lacks_it_is_not_asked_again_at_once(front, engines):
    """Other adapters, and requests without any, still go there."""
    refuses(engines[0])
    for _ in range(8):
        await placed(front)
    assert len(engines[0].asked("StartRequest")) == 1
    del engines[0].script["StartRequest"]
    assert {await placed(front, "poet") for _ in range(20)} == {"e1", "e2"}


async def test_generate_goes_there_too(front, engines):
    refuses(engines[0])
    for _ in range(2):
        request = wire.GenerateRequest(model_name="smol", text="Hello")
        request.config.lora_name = "sql"
        messages = [message async for message in front.requests.Generate(request)]
        assert messages[0].request.handle.startswith("e2/")


async def test_a_name_that_no_engine_knows_is_refused_as_by_an_engine(front, engines):
    for engine in engines:
        refuses(engine, message='adapter "sql" is not loaded; loaded are: poet')
    for _ in range(2):
        failure = await failing(start(front))
        assert failure.reported == UNKNOWN
        assert failure.message == 'adapter "sql" is not loaded; loaded are: poet'


async def test_a_full_engine_that_may_have_it_is_worth_a_retry(front, engines):
    refuses(engines[0])
    refuses(engines[1], FULL, "full")
    assert (await failing(start(front))).reported == FULL


async def test_keys_alone_say_who_is_asked_first(front, engines):
    """Whatever this gateway has learnt, and another has not."""
    refuses(engines[0])
    while not engines[0].asked("StartRequest"):
        await placed(front)
    found = {await placed(front, request_id=f"r{number}", attempt=1) for number in range(12)}
    assert found == {"e2"}
    assert len(engines[0].asked("StartRequest")) > 1


def test_what_was_lacked_is_asked_for_again_after_a_while():
    now = [100.0]
    lacked = LackedAdapters(lambda: now[0])
    lacked.note("smol", "sql")
    assert ("smol", "sql") in lacked
    assert ("smol", "poet") not in lacked
    now[0] += 10
    assert ("smol", "sql") not in lacked
    lacked.note("smol", "sql")
    lacked.forget("smol", "sql")
    assert ("smol", "sql") not in lacked


def test_names_that_callers_make_up_take_a_bounded_room():
    lacked = LackedAdapters()
    for number in range(5_000):
        lacked.note("smol", f"name {number}")
    assert ("smol", "name 4999") in lacked
    assert ("smol", "name 3000") not in lacked
