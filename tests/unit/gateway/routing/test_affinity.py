"""The engine with the beginning of a prompt is preferred, unless somebody would wait for that."""

from __future__ import annotations

import pytest
from headrace_gateway.engines.prefixes import pieces
from headrace_gateway.forwarding.ranking import ALLOWANCE
from headrace_proto.v1 import model_pb2, session_pb2
from headrace_proto.v1 import request_service_pb2 as wire

TEXT = "It was the best of times, it was the worst of times, " * 10


@pytest.fixture
async def front(world, first, second):
    return await world.gateway(e1=first, e2=second)


async def went(front, text: str) -> str:
    """Name of the engine that a prompt went to, by what polls found before it."""
    for engine in front.gateway.pool.engines:
        if not engine.load.followed:
            await engine.refresh()
    answer = await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text=text))
    return str(answer.request.handle).partition("/")[0]


def other(name: str) -> str:
    return "e2" if name == "e1" else "e1"


def report(front, name: str, **load: int) -> None:
    """What an engine tells of its load."""
    running = model_pb2.MODEL_STATE_RUNNING
    front.gateway.pool.named(name).load.update([session_pb2.ModelLoad(model_name="smol", state=running, **load)])


async def test_a_conversation_stays_where_it_began(front):
    first = await went(front, TEXT)
    texts = [TEXT + "And then? " * turn for turn in range(1, 5)]
    assert [await went(front, text) for text in texts] == [first] * 4


async def test_other_prompts_go_elsewhere(front):
    assert {await went(front, TEXT), await went(front, "x" + TEXT)} == {"e1", "e2"}


async def test_an_engine_with_a_queue_is_not_preferred(front):
    first = await went(front, TEXT)
    report(front, first, running=1, waiting=1)
    report(front, other(first), running=1)
    assert await went(front, TEXT) == other(first)


@pytest.mark.parametrize("more", [ALLOWANCE, ALLOWANCE + 1])
async def test_an_engine_with_much_more_to_do_is_not_preferred(front, more: int):
    first = await went(front, TEXT)
    report(front, other(first))
    front.gateway.pool.named(first).load.counted(float("inf"))
    report(front, first, running=more)
    assert await went(front, TEXT) == (first if more <= ALLOWANCE else other(first))


async def test_a_restarted_engine_is_like_any_other(front, first, second):
    name = await went(front, TEXT)
    prompt = pieces(wire.StartRequestRequest(model_name="smol", text=TEXT))
    engine = front.gateway.pool.named(name)
    assert engine.prefixes.known(prompt, engine.view.instance_id) == len(prompt)
    (first if name == "e1" else second).restart_as_new()
    await front.gateway.pool.refresh()
    assert engine.prefixes.known(prompt, engine.view.instance_id) == 0


async def test_without_affinity_the_load_alone_decides(front):
    front.gateway._router._affinity = False
    assert {await went(front, TEXT), await went(front, TEXT)} == {"e1", "e2"}
