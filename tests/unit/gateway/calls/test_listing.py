"""ListRequests over several engines: one list, newest first, each request once."""

from __future__ import annotations

import asyncio
import base64

import grpc
import pytest
from headrace_gateway import status
from headrace_gateway.forwarding.paging import merged_page
from headrace_gateway.status import CallError
from headrace_proto.v1 import request_service_pb2 as wire
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted.engine_answers import RUNNING
from support.scripted.engine_server import ScriptedEngine
from unit.gateway.failures import failing


class Named:
    """An engine as the merge sees it."""

    def __init__(self, name):
        self.name = name
        self.scripted = ScriptedEngine()


async def ask(engine, request):
    answer = await engine.scripted.ListRequests(request, None)
    for state in answer.requests:
        state.request.handle = state.request.handle.replace("self", engine.name, 1)
    return answer


def everything(model_name):
    return True


async def page(engines, **fields):
    return await merged_page(engines, wire.ListRequestsRequest(**fields), ask, everything)


def ids(answer):
    return [state.request.request_id for state in answer.requests]


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(st.sampled_from(["e1", "e2", "e3"]), max_size=30),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
)
def test_pages_of_any_size_tell_every_request_once_newest_first(places, sizes):
    async def run():
        engines = {name: Named(name) for name in ("e1", "e2", "e3")}
        for arrival, name in enumerate(places, start=1):
            engines[name].scripted.hold(str(arrival), arrival_ms=arrival)
        reported, token, turn = [], "", 0
        while True:
            size = sizes[turn % len(sizes)]
            answer = await page(list(engines.values()), page_size=size, page_token=token)
            reported += ids(answer)
            token, turn = answer.next_page_token, turn + 1
            if not token:
                break
            assert len(answer.requests) == size
        assert reported == [str(arrival) for arrival in range(len(places), 0, -1)]

    asyncio.run(run())


async def engines_holding(*arrivals):
    engines = [Named(f"e{number}") for number in range(1, len(arrivals) + 1)]
    for engine, times in zip(engines, arrivals, strict=True):
        for time in times:
            engine.scripted.hold(str(time), arrival_ms=time)
    return engines


def release(engine, request_id):
    held = engine.scripted.requests
    del held[next(key for key, each in held.items() if each.request_id == request_id)]


async def test_requests_that_arrive_between_two_pages_change_neither():
    engines = await engines_holding([1, 2, 3], [4, 5, 6])
    first = await page(engines, page_size=3)
    for arrival in range(10, 16):
        engines[arrival % 2].scripted.hold(str(arrival), arrival_ms=arrival)
    second = await page(engines, page_size=3, page_token=first.next_page_token)
    assert (ids(first), ids(second)) == (["6", "5", "4"], ["3", "2", "1"])


async def test_a_release_between_two_pages_leaves_out_nothing_else():
    engines = await engines_holding([1, 3, 5], [2, 4, 6])
    first = await page(engines, page_size=3)
    release(engines[0], "5")  # told last by its engine
    release(engines[1], "6")
    release(engines[1], "2")
    second = await page(engines, page_size=3, page_token=first.next_page_token)
    assert (ids(second), second.next_page_token) == (["3", "1"], "")


async def test_requests_without_shown_sequences_are_listed():
    """With best_of above n an engine shows no sequence, and so no arrival, before all candidates ended."""
    engines = await engines_holding([1, 3, 5, 7], [2, 4, 6, 8])

    async def hiding(engine, request):
        answer = await ask(engine, request)
        for state in answer.requests:
            if state.request.request_id in ("3", "8"):
                del state.sequences[:]
        return answer

    reported, token = [], ""
    while not reported or token:
        answer = await merged_page(engines, wire.ListRequestsRequest(page_size=2, page_token=token), hiding, everything)
        reported, token = reported + ids(answer), answer.next_page_token
    assert sorted(reported) == list("12345678")
    assert [each for each in reported if each not in "38"] == list("765421")


async def test_an_empty_list_is_one_empty_page():
    answer = await page(await engines_holding([], []))
    assert (ids(answer), answer.next_page_token) == ([], "")


async def test_the_default_page_has_a_hundred():
    engines = await engines_holding(range(1, 150))
    answer = await page(engines)
    assert len(answer.requests) == 100
    assert len((await page(engines, page_token=answer.next_page_token)).requests) == 49


@pytest.mark.parametrize(
    "token",
    [
        "nonsense",
        "ä",
        base64.urlsafe_b64encode(b"[1]").decode(),
        base64.urlsafe_b64encode(b'["x", 1, {"e1": [1, 2]}]').decode(),
    ],
)
async def test_a_page_token_that_was_never_given_out_is_refused(world, token):
    front = await world.gateway(e1=await world.engine(smol=RUNNING))
    failure = await failing(front.requests.ListRequests(wire.ListRequestsRequest(page_token=token)))
    assert failure.reported == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert failure.fields == ["page_token"]


async def test_a_page_token_of_another_list_is_refused(world):
    engine = await world.engine(smol=RUNNING)
    engine.hold("r1")
    engine.hold("r2")
    front = await world.gateway(e1=engine)
    token = (await front.requests.ListRequests(wire.ListRequestsRequest(page_size=1))).next_page_token
    other = wire.ListRequestsRequest(page_size=1, page_token=token, model_name="smol")
    failure = await failing(front.requests.ListRequests(other))
    assert failure.fields == ["page_token"]
    assert "another model_name" in failure.message


async def test_a_page_too_large_is_refused(world):
    front = await world.gateway(e1=await world.engine(smol=RUNNING))
    failure = await failing(front.requests.ListRequests(wire.ListRequestsRequest(page_size=1001)))
    assert failure.fields == ["page_size"]
    assert "1001" in failure.message
    assert "1000" in failure.message


async def test_engines_out_of_reach_are_named_and_the_rest_is_listed(world):
    first, second = await world.engine(smol=RUNNING), await world.engine(smol=RUNNING)
    front = await world.gateway(e1=first, e2=second)
    for number in (1, 2, 3):
        first.hold(f"r{number}", arrival_ms=number)
    await second.stop()
    reported, token = [], ""
    while not reported or token:
        answer = await front.requests.ListRequests(wire.ListRequestsRequest(page_size=2, page_token=token))
        assert [(each.engine, CallError(each.failure).reason) for each in answer.missing] == [
            ("e2", "ENGINE_UNREACHABLE")
        ]
        reported, token = reported + ids(answer), answer.next_page_token
    assert reported == ["r3", "r2", "r1"]


async def test_an_engine_that_returns_is_in_the_pages_that_follow():
    engines = await engines_holding([1, 3, 5], [2, 4, 6])
    away = {engines[1]}

    async def lossy(engine, request):
        if engine in away:
            raise status.engine_unreachable(engine.name, reached=False, lost=True)
        return await ask(engine, request)

    first = await merged_page(engines, wire.ListRequestsRequest(page_size=2), lossy, everything)
    away.clear()
    token = first.next_page_token
    second = await merged_page(engines, wire.ListRequestsRequest(page_size=2, page_token=token), lossy, everything)
    assert (ids(first), ids(second)) == (["5", "3"], ["2", "1"])
    assert [each.engine for each in first.missing] == ["e2"]
    assert not second.missing


async def test_a_list_fails_where_no_engine_can_be_reached(world):
    only = await world.engine(smol=RUNNING)
    front = await world.gateway(e1=only)
    await only.stop()
    failure = await failing(front.requests.ListRequests(wire.ListRequestsRequest()))
    assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNREACHABLE")


async def test_filters_reach_every_engine(world):
    first, second = await world.engine(smol=RUNNING), await world.engine(smol=RUNNING)
    front = await world.gateway(e1=first, e2=second)
    first.hold("r1")
    second.hold("r2", owner="bob")
    request = wire.ListRequestsRequest(model_name="smol", running_only=True)
    assert ids(await front.requests.ListRequests(request)) == ["r1"]
    for engine in (first, second):
        heard = engine.asked("ListRequests")[-1].request
        assert (heard.model_name, heard.running_only, heard.owner) == ("smol", True, "")
