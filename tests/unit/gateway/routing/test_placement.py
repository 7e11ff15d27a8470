"""Where a request goes: the least loaded engine that runs its model, and what happens when there is none."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest
from headrace_proto.v1 import model_service_pb2 as model_wire
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.v1 import status_pb2
from support.clocks.waiting import happens
from support.scripted.engine_answers import INITIAL, RUNNING, STOPPED, packed, refuse
from unit.gateway.conftest import until
from unit.gateway.failures import failing
from unit.gateway.placing import all_placed, placed, request

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def generated(front):
    """Name of the engine that a Generate went to."""
    stream = [message async for message in front.requests.Generate(wire.GenerateRequest(model_name="smol", text="Hi"))]
    assert stream[-1].HasField("end")
    return stream[0].request.handle.partition("/")[0]


@pytest.fixture
async def front(world, first, second):
    """Polls only when it has cause to: what it knows is as old as the test makes it."""
    return await world.gateway(e1=first, e2=second)


async def test_idle_engines_alternate(front):
    went = []
    for _ in range(6):
        went.append(await placed(front))
        await front.gateway.pool.refresh()  # both are idle again, so only the turn decides
    assert went in (["e1", "e2"] * 3, ["e2", "e1"] * 3)


async def test_generate_counts_as_a_turn_too(front):
    assert {await generated(front), await placed(front)} == {"e1", "e2"}


async def test_the_least_loaded_engine_is_chosen(front, first, second):
    first.running, first.waiting, second.running = 3, 2, 1
    await front.gateway.pool.refresh()
    assert await all_placed(front, 4) == ["e2"] * 4
    assert Counter(await all_placed(front, 4)) == {"e1": 2, "e2": 2}


async def test_placements_count_until_a_poll_counts_them(front, first):
    engine = front.gateway.pool.named("e1")
    assert Counter(await all_placed(front, 6)) == {"e1": 3, "e2": 3}
    assert engine.load.requests == 3
    first.running = 2  # one has ended
    await engine.refresh()
    assert engine.load.requests == 2


async def test_a_request_placed_while_a_poll_runs_is_not_forgotten(world, first):
    """The poll's figures may be older than the request."""
    front = await world.gateway(e1=first)
    engine = front.gateway.pool.named("e1")
    polls, counted, go_on = first.polls(), asyncio.Event(), asyncio.Event()

    async def slow(request, context):
        answer = await type(first).GetEngineStat(first, request, context)
        counted.set()
        await go_on.wait()
        return answer

    first.script["GetEngineStat"] = slow
    poll = asyncio.ensure_future(engine.refresh())
    await happens(counted, "no poll arrives")
    await placed(front)
    go_on.set()
    await poll
    assert (first.polls(), engine.load.requests) == (polls + 1, 1)


async def test_a_request_that_is_being_started_counts_already(front, first, second):
    held = asyncio.Event()

    async def slow(request, context):
        await held.wait()
        return await type(first).StartRequest(first, request, context)

    first.script["StartRequest"] = second.script["StartRequest"] = slow
    calls = [asyncio.ensure_future(front.requests.StartRequest(request())) for _ in range(4)]
    await until(first, lambda: len(first.asked("StartRequest")) == 2)
    await until(second, lambda: len(second.asked("StartRequest")) == 2)
    held.set()
    await asyncio.gather(*calls)


@pytest.mark.parametrize("why", ["draining", "gone", "without the model", "model not running"])
async def test_an_engine_that_cannot_take_it_is_left_out(front, first, why):
    if why == "draining":
        first.draining = True
    elif why == "gone":
        await first.stop()
    elif why == "without the model":
        first.models.clear()
    else:
        first.models["smol"] = STOPPED
    await front.gateway.pool.refresh()
    assert await all_placed(front, 3) == ["e2"] * 3
    assert await generated(front) == "e2"
    assert not first.asked("StartRequest")


@pytest.mark.parametrize("known", [False, True])
async def test_bc173_a_drain_is_told_alike_before_and_after_a_poll(front, first, second, known):
    first.draining = True
    second.models.clear()
    if known:
        await front.gateway.pool.refresh()
    assert (await failing(front.requests.StartRequest(request()))).reported == (UNAVAILABLE, "DRAINING")


async def test_a_model_started_without_this_gateway_is_found_at_once(front, first, second):
    first.models["smol"] = second.models["smol"] = INITIAL
    await front.gateway.pool.refresh()
    second.models["smol"] = RUNNING
    assert await placed(front) == "e2"


async def test_a_model_started_here_takes_requests_on_every_engine(front, first, second):
    first.models["smol"] = second.models["smol"] = INITIAL
    await front.gateway.pool.refresh()
    await front.models.StartModel(model_wire.StartModelRequest(model_name="smol"))
    assert sorted(await all_placed(front, 2)) == ["e1", "e2"]


@pytest.mark.parametrize("reason", ["MODEL_NOT_RUNNING", "DRAINING", "UNKNOWN_MODEL"])
async def test_a_refusal_that_the_gateway_could_not_foresee_moves_on(front, first, reason):
    """What the gateway knows is stale here: it still believes that the first engine takes requests."""
    if reason == "DRAINING":
        first.draining = True
    elif reason == "MODEL_NOT_RUNNING":
        first.models["smol"] = STOPPED
    else:
        first.models.clear()
    assert await all_placed(front, 2) == ["e2", "e2"]
    assert first.asked("StartRequest")
    assert await generated(front) == "e2"


async def full(request, context):
    queue = packed("QueueInfo", status_pb2.QueueInfo(waiting_ahead=256, max_waiting=256), "headrace.v1")
    await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", queue, message="256 requests are waiting")


async def no_room(request, context):
    await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "RESULTS_FULL", message="268435456 bytes are taken")


async def too_late(request, context):
    await refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_NOT_MET", message="the deadline of 1 s")


@pytest.mark.parametrize("refusing", [full, no_room, too_late])
async def test_a_full_engine_moves_on_to_one_with_room(front, first, refusing):
    first.script["StartRequest"] = first.script["Generate"] = refusing
    assert await all_placed(front, 2) == ["e2", "e2"]
    assert await generated(front) == "e2"


async def test_an_impossible_deadline_is_refused_in_the_engines_words(front, first, second):
    first.script["StartRequest"] = second.script["StartRequest"] = too_late
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.reported == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_NOT_MET")
    assert failure.message == "the deadline of 1 s"
    assert [len(engine.asked("StartRequest")) for engine in (first, second)] == [1, 1]


@pytest.mark.parametrize("later", [False, True])
async def test_of_two_load_refusals_the_one_with_a_time_is_reported(front, first, second, later):
    first.script["StartRequest"], second.script["StartRequest"] = (too_late, full) if later else (full, too_late)
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.reported == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


async def test_an_engine_replacing_its_core_is_skipped_if_others_serve(front, first, second):
    first.restarting, second.running = {"smol"}, 100
    await front.gateway.pool.refresh()
    assert await all_placed(front, 3) == ["e2"] * 3
    assert not first.asked("StartRequest")


async def test_a_core_that_is_back_since_the_last_poll_takes_requests(front, first, second):
    first.restarting = {"smol"}
    second.models["smol"] = STOPPED
    await front.gateway.pool.refresh()
    assert (await failing(front.requests.StartRequest(request()))).reported == (UNAVAILABLE, "CORE_RESTARTING")
    first.restarting.clear()
    assert await placed(front) == "e1"


async def test_when_all_refuse_the_one_that_passes_by_itself_is_told(front, first, second):
    first.script["StartRequest"] = full
    second.models["smol"] = STOPPED
    failure = await failing(front.requests.StartRequest(request()))
    assert failure.reported == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert failure.details["QueueInfo"].max_waiting == 256


@pytest.mark.parametrize("begin", [placed, generated])
async def test_a_connection_that_fails_before_sending_moves_on(front, first, begin):
    """The gateway still believes that the first engine is there."""
    await first.stop()
    for _ in range(3):
        assert await begin(front) in ("e2", ["e2"])


async def test_a_request_that_may_have_arrived_is_not_placed_again(front, first, second):
    """Only the client knows how to ask for it: with its request_id and the next attempt."""

    async def never(request, context):
        await asyncio.Event().wait()

    first.script["StartRequest"] = second.script["StartRequest"] = never
    call = asyncio.ensure_future(front.requests.StartRequest(request("r1")))
    engines = {"e1": first, "e2": second}
    while not (asked := [name for name, engine in engines.items() if engine.asked("StartRequest")]):
        await asyncio.wait(
            [asyncio.ensure_future(e.changed.wait()) for e in engines.values()], return_when="FIRST_COMPLETED"
        )
    await engines[asked[0]].stop()
    failure = await failing(call)
    assert failure.reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
    assert failure.facts["engine"] == asked[0]
    assert len(first.asked("StartRequest") + second.asked("StartRequest")) == 1


async def test_a_refusal_of_the_request_itself_does_not_move_on(front, first, second):
    async def invalid(request, context):
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "PROMPT_TOO_LONG")

    first.script["StartRequest"] = second.script["StartRequest"] = invalid
    assert (await failing(front.requests.StartRequest(request()))).reason == "PROMPT_TOO_LONG"
    assert len(first.asked("StartRequest") + second.asked("StartRequest")) == 1


async def test_bc182_a_channel_uses_all_engines_and_returning_ones(world, first, second):
    front = await world.gateway(poll_interval=0.05, e1=first, e2=second)
    shares = Counter(await all_placed(front, 40))
    assert min(shares["e1"], shares["e2"]) >= 12
    await first.stop()
    assert set(await all_placed(front, 10)) == {"e2"}
    await first.start()
    await front.seen("e1")
    assert set(await all_placed(front, 10)) == {"e1", "e2"}
