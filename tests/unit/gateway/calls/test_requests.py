"""Requests through the gateway: named after its list, and led back to the engine that holds them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import pytest
from headrace_proto.v1 import request_pb2, status_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import ends
from support.scripted.engine_answers import element, packed, refuse
from unit.gateway.failures import carried, failing

NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
ID = "0123456789abcdef0123456789abcdef"


async def start(front, request_id="r1", **more):
    answer = await front.requests.StartRequest(
        wire.StartRequestRequest(model_name="smol", request_id=request_id, text="Hello", **more)
    )
    return answer.request.handle


async def test_every_answer_names_the_engine_as_the_list_does(front, engine):
    handle = await start(front)
    assert handle.startswith(f"e1/{engine.instance_id}/")
    engine.requests[handle.rpartition("/")[2]].ended.set()
    got = await front.requests.GetRequest(wire.GetRequestRequest(handle=handle))
    by_id = await front.requests.GetRequest(wire.GetRequestRequest(request_id="r1"))
    listed = await front.requests.ListRequests(wire.ListRequestsRequest())
    synced = await front.requests.SyncRequest(wire.SyncRequestRequest(handle=handle))
    synced_all = await front.requests.SyncRequest(wire.SyncRequestRequest(model_name="smol"))
    states = [got.request, by_id.request, *listed.requests, *synced.requests, *synced_all.requests]
    assert [state.request.handle for state in states] == [handle] * 5
    stream = front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=handle))
    assert {message.handle async for message in stream} == {handle}
    generated = [message async for message in front.requests.Generate(wire.GenerateRequest(model_name="smol"))]
    assert generated[0].request.handle.startswith("e1/")


async def test_a_failure_names_the_handle_as_the_list_does(front, engine):
    failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(handle=f"e1/{engine.instance_id}/{ID}")))
    assert failure.reported == (NOT_FOUND, "UNKNOWN_REQUEST")
    assert failure.facts["handle"] == f"e1/{engine.instance_id}/{ID}"


async def test_request_info_of_a_failure_has_the_lists_handle(front, engine):
    async def fault(request, context):
        info = packed("RequestInfo", status_pb2.RequestInfo(request_id="r1", serving_data=f"self/{request.handle[3:]}"))
        await refuse(context, grpc.StatusCode.INTERNAL, "ENGINE_FAULT", info, message="a fault")

    engine.script["StopRequest"] = fault
    failure = await failing(front.requests.StopRequest(wire.StopRequestRequest(handle=f"e1/x/{ID}")))
    assert failure.reported == (grpc.StatusCode.INTERNAL, "ENGINE_FAULT")
    assert failure.message == "a fault"
    assert failure.details["RequestInfo"].serving_data == f"e1/x/{ID}"


async def test_a_failure_in_a_stream_has_the_lists_handle(front, engine):
    async def ends_with_a_fault(request, context):
        info = status_pb2.ErrorInfo(reason="ENGINE_FAULT", domain="headrace", metadata={"handle": f"self/x/{ID}"})
        error = status_pb2.Status(code=13, message="a fault", details=[packed("ErrorInfo", info)])
        end = request_pb2.EndRecord(status=request_pb2.GENERATE_STATUS_INTERNAL_ERROR, error=error)
        await context.write(wire.GeneratedElementsResponse(handle=f"self/x/{ID}", end=end))

    engine.script["GeneratedElements"] = ends_with_a_fault
    stream = front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=f"e1/x/{ID}"))
    (only,) = [message async for message in stream]
    assert carried(only.end.error).facts["handle"] == only.handle == f"e1/x/{ID}"


@pytest.mark.parametrize("handle", ["", "nonsense", "e1/only-two", "e1//" + ID, "/x/" + ID, "e1/x/", "e1/x/y/z"])
async def test_what_is_no_handle_is_an_unknown_request(front, engine, handle):
    calls = [
        front.requests.StopRequest(wire.StopRequestRequest(handle=handle)),
        front.requests.GetRequest(wire.GetRequestRequest(handle=handle)),
        front.requests.SyncRequest(wire.SyncRequestRequest(handle=handle)),
        front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=handle)),
    ]
    for call in calls:
        assert (await failing(call)).reported == (NOT_FOUND, "UNKNOWN_REQUEST")
    assert await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=handle)) is not None


async def test_a_handle_of_an_unlisted_engine_is_an_unknown_engine(front):
    failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(handle=f"e9/x/{ID}")))
    assert failure.reported == (NOT_FOUND, "UNKNOWN_ENGINE")
    assert failure.facts["engine"] == "e9"
    assert "e1" in failure.message


@pytest.mark.parametrize("handle", [f"e9/x/{ID}", "ä" * 100_000 + "/x/y"])
async def test_releasing_a_handle_of_an_unlisted_engine_succeeds(front, engine, handle):
    """The list was changed, say: it is lost like a handle of an earlier start of an engine."""
    await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=handle))
    assert not engine.asked("ReleaseRequest")


async def test_a_huge_handle_is_refused_within_the_bounds_of_trailers(front):
    failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(handle="ä" * 100_000 + "/x/y")))
    assert failure.reported == (NOT_FOUND, "UNKNOWN_ENGINE")
    assert "100000 characters" in failure.message


async def test_a_silent_engine_is_unreachable_and_worth_a_retry(front, engine):
    handle = await start(front)
    await engine.stop()
    for call in (
        front.requests.GetRequest(wire.GetRequestRequest(handle=handle)),
        front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=handle)),
    ):
        failure = await failing(call)
        assert failure.reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
        assert failure.facts["engine"] == "e1"
        assert failure.retry_seconds == 1.0
        assert engine.address not in failure.message


async def test_an_engine_whose_port_is_closed_counts_as_lost(front, engine):
    handle = await start(front)
    await engine.stop()
    await front.gateway.pool.refresh()
    failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(handle=handle)))
    assert (failure.reason, failure.facts["lost"]) == ("ENGINE_UNREACHABLE", "true")
    assert "probably lost" in failure.message


async def test_what_is_released_on_a_lost_engine_goes_when_it_returns(front, engine):
    handle = await start(front)
    await engine.stop()
    await front.gateway.pool.refresh()
    await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=handle))
    assert not engine.asked("ReleaseRequest")
    await engine.start()
    async with ends("the release does not reach the engine that returned"):
        while not engine.asked("ReleaseRequest"):
            await front.gateway.pool.refresh()
    assert engine.asked("ReleaseRequest")[0].request.handle.endswith(handle.partition("/")[2])


async def test_a_release_to_a_returned_silent_engine_is_repeated(front, engine):
    """Its first call may still meet the connection on which the engine was lost."""

    async def lost(request, context):
        del engine.script["ReleaseRequest"]
        await refuse(context, UNAVAILABLE, "CONNECTION_LOST")

    handle = await start(front)
    await engine.stop()
    await front.gateway.pool.refresh()
    await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=handle))
    engine.script["ReleaseRequest"] = lost
    await engine.start()
    async with ends("the release is not repeated"):
        while len(engine.asked("ReleaseRequest")) < 2:
            await front.gateway.pool.refresh()
    assert {asked.request.handle.rpartition("/")[2] for asked in engine.asked("ReleaseRequest")} == {
        handle.rpartition("/")[2]
    }


async def test_a_returned_engine_is_used_before_the_next_poll(front, engine):
    handle = await start(front)
    await engine.stop()
    await front.gateway.pool.refresh()
    await engine.start()
    channel = front.gateway.pool.named("e1").channel
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)
    await front.requests.GetRequest(wire.GetRequestRequest(handle=handle))


async def test_a_lost_instance_is_told_except_to_a_release(front, engine):
    handle = await start(front)
    engine.restart_as_new()
    failure = await failing(front.requests.GetRequest(wire.GetRequestRequest(handle=handle)))
    assert failure.reported == (NOT_FOUND, "ENGINE_LOST")
    assert failure.facts["handle"] == handle
    await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=handle))


async def test_a_handle_works_through_any_gateway_with_the_same_list(world, engine, front):
    handle = await start(front)
    other = await world.gateway(e1=engine)
    assert (await other.requests.GetRequest(wire.GetRequestRequest(handle=handle))).request.request.request_id == "r1"


async def test_index_and_position_reach_the_engine(front):
    handle = await start(front)
    request = wire.GeneratedElementsRequest(handle=handle, index=3, from_position=2)
    messages = [message async for message in front.requests.GeneratedElements(request)]
    assert [message.elements.position for message in messages if message.HasField("elements")] == [2]
    assert messages[0].index == 3


async def test_f14_b7_a_call_that_names_an_owner_is_refused(front, engine):
    """Without keys nothing shows who a client is, so the name would be dropped without a word."""
    calls = {
        "StartRequest": wire.StartRequestRequest(model_name="smol", text="a", owner="ann"),
        "Generate": wire.GenerateRequest(model_name="smol", text="a", owner="ann"),
        "StopRequest": wire.StopRequestRequest(handle="e1/a/b", owner="ann"),
        "ReleaseRequest": wire.ReleaseRequestRequest(handle="no handle", owner="ann"),
        "SyncRequest": wire.SyncRequestRequest(model_name="smol", owner="ann"),
        "GetRequest": wire.GetRequestRequest(request_id="r1", owner="ann"),
        "ListRequests": wire.ListRequestsRequest(owner="ann"),
        "GeneratedElements": wire.GeneratedElementsRequest(handle="e1/a/b", owner="ann"),
    }
    for method, request in calls.items():
        call = getattr(front.requests, method)(request)
        failure = await failing(call if hasattr(call, "__await__") else call.read())
        assert failure.reported == (grpc.StatusCode.INVALID_ARGUMENT, "NOT_SUPPORTED"), method
        assert failure.fields == ["owner"]
        assert '"ann"' in failure.message
        assert not engine.asked(method)


async def test_bc182_an_engine_lost_in_mid_stream_is_reported_last(world, engine):
    front = await world.gateway(poll_interval=0.05, e1=engine)

    async def endless(request, context):
        await context.write(element(request.handle, 0, 5))
        await asyncio.Event().wait()

    engine.script["GeneratedElements"] = endless
    handle = await start(front)
    stream = front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=handle))
    assert (await stream.read()).elements.token_ids == [5]
    await engine.stop()
    failure = await failing(stream.read())
    assert failure.reported == (UNAVAILABLE, "ENGINE_UNREACHABLE")
    del engine.script["GeneratedElements"]
    await engine.start()
    positions: list[int] = []
    async with ends("the engine is not reached again"):
        while not positions:
            await front.seen("e1")
            again = front.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=handle, from_position=1))
            with suppress(grpc.RpcError):  # What tried to connect before the start may fail after it.
                positions = [each.elements.position async for each in again if each.HasField("elements")]
    assert positions == [1, 2]


async def test_a_call_without_its_key_is_refused_by_name(front):
    get = await failing(front.requests.GetRequest(wire.GetRequestRequest()))
    sync = await failing(front.requests.SyncRequest(wire.SyncRequestRequest()))
    assert (get.fields, sync.fields) == (["key"], ["target"])
    assert get.reported == sync.reported == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
