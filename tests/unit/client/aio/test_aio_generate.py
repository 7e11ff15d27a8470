"""Requests of the asynchronous client that are cancelled, dropped or left: each is released once."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import grpc
import pytest
from headrace import (
    AsyncClient,
    RequestReleasedError,
    UnavailableError,
)
from headrace_proto.v1 import model_pb2, model_service_pb2, request_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.async_clock import FakeAsyncClock
from support.clocks.waiting import comes, eventually
from support.logged import logged
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import HANDLE, accepted, end_record, ended, got, running_info, text_of, tokens
from unit.client.aio.aio_gates import Gate, cancelled

IDS = list(range(12))
RELEASED = wire.ReleaseRequestResponse()


class ReleasedOnceRead:
    """Answers a release when its stream is there, so that what ends it can be seen.

    Attributes:
        seen: set once the stream was there.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self.seen = threading.Event()
        self._server = server

    def __call__(self, request: Any) -> Any:
        self._server.wait_for_streams(1)
        self.seen.set()
        return RELEASED


async def test_a_request_whose_start_was_cancelled_is_released(client: AsyncClient, server: ScriptedServer) -> None:
    """Nobody will ever know its handle. The cancellation itself waits for nothing."""
    gate = Gate(accepted())
    server.expect("StartRequest", gate)
    server.expect("GeneratedElements", [Hang()])
    release = ReleasedOnceRead(server)
    server.expect("ReleaseRequest", release)
    call = asyncio.create_task(client.start_request("smol", "Hello"))
    await asyncio.to_thread(comes, gate.asked, "nothing is asked")
    await cancelled(call)
    gate.open.set()
    await asyncio.to_thread(comes, release.seen, "it is not released")
    assert server.requests("ReleaseRequest")[0].handle == HANDLE
    await asyncio.to_thread(server.wait_for_streams, 0)


async def test_a_cancelled_start_with_an_own_id_is_left_to_the_caller(
    client: AsyncClient, server: ScriptedServer
) -> None:
    """The same id finds it again."""
    gate = Gate(accepted())
    server.expect("StartRequest", gate)
    call = asyncio.create_task(client.start_request("smol", "Hello", request_id="r1"))
    await asyncio.to_thread(comes, gate.asked, "nothing is asked")
    await cancelled(call)
    gate.open.set()
    server.expect("StartRequest", accepted(joined=True))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS)])
    _, queue = await client.start_request("smol", "Hello", request_id="r1")
    assert [token async for one in queue for token in one.ids_from_generate] == IDS
    assert server.requests("ReleaseRequest") == []


# Streams of text.


async def test_generate_starts_at_the_first_step_and_releases_at_last(
    client: AsyncClient, server: ScriptedServer
) -> None:
    stream = client.generate("smol", "Hello", seed=7)
    with pytest.raises(RuntimeError, match="not been started"):
        _ = stream.queue
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens(IDS, 0, 5), tokens(IDS, 5), ended(IDS, "…")])
    server.expect("ReleaseRequest", RELEASED)
    assert "".join([text async for text in stream]) == text_of(IDS) + "…"
    assert server.requests("StartRequest")[0].config.seed == 7
    assert stream.queue.finish_reason == "EOS"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.close()


async def test_a_cancelled_step_of_generate_releases_before_it_ends(
    client: AsyncClient, server: ScriptedServer
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens(IDS, 0, 5), Hang()])
    server.expect("ReleaseRequest", RELEASED)
    stream = client.generate("smol", "Hello")
    assert await anext(stream) == text_of(IDS[:5])
    step = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    await cancelled(step)
    assert [request.handle for request in server.requests("ReleaseRequest")] == [HANDLE]
    await asyncio.to_thread(server.wait_for_streams, 0)


@pytest.mark.parametrize("request_id", [None, "r1"])
async def test_a_cancelled_first_step_leaves_nothing_behind(
    client: AsyncClient, server: ScriptedServer, request_id: str | None
) -> None:
    """Also under the caller's own id, as a later step. The cancellation itself waits for nothing."""
    gate = Gate(accepted())
    server.expect("StartRequest", gate)
    server.expect("GeneratedElements", [Hang()])
    release = ReleasedOnceRead(server)
    server.expect("ReleaseRequest", release)
    step = asyncio.create_task(anext(client.generate("smol", "Hello", request_id=request_id)))
    await asyncio.to_thread(comes, gate.asked, "nothing is asked")
    await cancelled(step)
    gate.open.set()
    await asyncio.to_thread(comes, release.seen, "it is not released")
    await asyncio.to_thread(server.wait_for_streams, 0)


@pytest.mark.parametrize("way", ["left", "dropped", "closed"])
async def test_generate_releases_when_it_is_not_read_to_the_end(
    client: AsyncClient, server: ScriptedServer, way: str
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens(IDS, 0, 5), Hang()])
    server.expect("ReleaseRequest", RELEASED)
    if way == "left":
        async with client.generate("smol", "Hello") as stream:
            assert stream.queue.handle == HANDLE
            assert await anext(stream)
    else:
        stream = client.generate("smol", "Hello")
        async for text in stream:
            assert text
            break
        if way == "closed":
            await stream.close()
        del stream
        gc.collect()
    await asyncio.to_thread(server.wait_for, "ReleaseRequest")
    await asyncio.to_thread(server.wait_for_streams, 0)


async def test_a_failed_start_raises_from_the_first_step(client: AsyncClient, server: ScriptedServer) -> None:
    server.expect("StartRequest", Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=100.0))
    with pytest.raises(UnavailableError):
        async for _ in client.generate("smol", "Hi"):
            pass


async def test_a_failed_release_is_logged_and_hides_nothing(
    client: AsyncClient, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Hang()])
    stream = client.generate("smol", "Hi")
    step = asyncio.create_task(anext(stream))
    await asyncio.to_thread(server.wait_for_streams, 1)
    await client.close()
    with pytest.raises(UnavailableError):
        await step
    assert "could not release a request, which ends with its lease" in caplog.text


# Watching.


async def test_a_watch_iterates_can_be_left_cancelled_and_dropped(client: AsyncClient, server: ScriptedServer) -> None:
    change = model_service_pb2.WatchModelResponse(model=model_pb2.ModelInfo(model_name="smol"))
    server.expect("WatchModel", [change, change], [change, Hang()], [change, Hang()], [change, Hang()])
    assert [info.model_name async for info in client.watch_model("smol")] == ["smol"] * 2
    async with client.watch_model() as watch:
        assert (await anext(watch)).model_name == "smol"
    assert [info async for info in watch] == []
    await asyncio.to_thread(server.wait_for_streams, 0)
    watch = client.watch_model()
    await anext(watch)
    step = asyncio.create_task(anext(watch))
    await asyncio.sleep(0)
    await cancelled(step)
    await asyncio.to_thread(server.wait_for_streams, 0)
    watch = client.watch_model()
    await anext(watch)
    del watch
    await asyncio.to_thread(server.wait_for_streams, 0)


# Leaving the client.


async def test_leaving_releases_all_but_what_a_lost_engine_held(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted, drained = request_pb2.GENERATE_STATUS_INTERRUPTED, request_pb2.FINISH_REASON_DRAINED
    end = end_record(IDS, status=interrupted, finish_reason=drained)
    server.expect("StartRequest", accepted("a/b/1"), accepted("c/d/2"))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS, record=end)], when=lambda r: r.handle == "a/b/1")
    server.expect("GeneratedElements", [Hang()], when=lambda r: r.handle == "c/d/2")
    server.expect("ReleaseRequest", Failure(grpc.StatusCode.UNAVAILABLE, reason="ENGINE_UNREACHABLE"), RELEASED)
    async with AsyncClient(server.address, handover=False) as client:
        _, queue = await client.start_request("smol", "Hello")
        assert [elements async for elements in queue]
        await client.start_request("smol", "Hello")
        await asyncio.to_thread(server.wait_for_streams, 1)
    assert [request.handle for request in server.requests("ReleaseRequest")] == ["a/b/1", "c/d/2"]
    assert not logged(caplog)


async def test_leaving_releases_what_was_started_and_no_more(server: ScriptedServer, clock: FakeAsyncClock) -> None:
    server.expect("StartRequest", accepted("e1/i1/1"), accepted("e1/i1/2"))
    server.expect("GeneratedElements", [Hang()], [Hang()], [Hang()])
    server.expect("GetRequest", got(running_info(), handle="e1/i1/3"))
    server.expect("ReleaseRequest", RELEASED, RELEASED)
    async with AsyncClient(server.address, clock=clock) as client:
        first, _ = await client.start_request("smol", "1")
        second, queue = await client.start_request("smol", "2")
        third = await client.open_queue("e1/i1/3")
        await asyncio.to_thread(server.wait_for_streams, 3)
        await client.release_request(first)
    assert [request.handle for request in server.requests("ReleaseRequest")] == [first, second]
    with pytest.raises(RequestReleasedError):
        await queue.Get()
    with pytest.raises(UnavailableError):
        await third.Get()


async def test_a_dropped_client_lets_go_of_its_server(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Hang()])
    client = AsyncClient(server.address)
    await client.start_request("smol", "1")
    await asyncio.to_thread(server.wait_for_streams, 1)
    del client
    gc.collect()
    await asyncio.to_thread(server.wait_for_streams, 0)
    await eventually(
        lambda: not [one for one in asyncio.all_tasks() if one.get_name().startswith("headrace-")], "tasks go on"
    )
