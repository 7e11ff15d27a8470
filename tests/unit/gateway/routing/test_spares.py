"""Spare engines: they get what no other engine takes, and nothing else."""

from __future__ import annotations

import grpc
import pytest
from support.scripted.engine_answers import STOPPED, refuse
from unit.gateway.placing import all_placed, placed


@pytest.fixture
async def front(world, first, second):
    """The second engine is spare."""
    return await world.gateway(e1=first, e2=second, spares=("e2",))


async def full(request, context):
    await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", message="256 requests are waiting")


async def test_a_spare_engine_gets_nothing_while_another_serves(front, first):
    first.running = 100
    await front.gateway.pool.refresh()
    assert await all_placed(front, 6) == ["e1"] * 6


async def test_requests_with_a_key_leave_it_alone_too(front):
    """Else half of the keys would be its own."""
    assert {await placed(front, request_id=f"key {number}") for number in range(16)} == {"e1"}


async def test_the_beginning_of_a_prompt_draws_nothing_there(front, first, second):
    first.models["smol"] = STOPPED
    await front.gateway.pool.refresh()
    assert await placed(front) == "e2"
    first.models["smol"] = second.models["smol"]
    await front.gateway.pool.refresh()
    assert await placed(front) == "e1"


@pytest.mark.parametrize("why", ["gone", "model not running", "core restarting", "full"])
async def test_it_takes_what_no_other_engine_takes(front, first, why):
    if why == "gone":
        await first.stop()
    elif why == "model not running":
        first.models["smol"] = STOPPED
    elif why == "core restarting":
        first.restarting = {"smol"}
    else:
        first.script["StartRequest"] = full
    await front.gateway.pool.refresh()
    assert await all_placed(front, 2) == ["e2"] * 2
