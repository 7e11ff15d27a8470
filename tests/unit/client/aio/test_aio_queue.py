"""Reading in an event loop: the same table as the other queue's, and waits that can be cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from headrace import (
    AsyncClient,
    AsyncResultQueue,
    GenerateStatus,
    InternalServerError,
    RequestReleasedError,
    UnavailableError,
)
from headrace._streaming.reads import WINDOW
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.async_clock import FakeAsyncClock
from support.clocks.waiting import eventually
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import HANDLE, accepted, ended, ended_info, got, running_info, tokens

IDS = list(range(40))
RELEASED = wire.ReleaseRequestResponse()


async def start(client: AsyncClient, server: ScriptedServer, *streams: list[Any]) -> AsyncResultQueue:
    """A queue whose streams, one after the other, play these steps."""
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", *streams)
    return (await client.start_request("smol", "Hello"))[1]


async def rest(queue: AsyncResultQueue) -> list[int]:
    """All ids to the end."""
    return [token async for one in queue for token in one.ids_from_generate]


async def get_then_status(queue: AsyncResultQueue) -> list[Any]:
    """Reads, then looks whether it was the last."""
    found = []
    while True:
        found.append(await queue.Get())
        if queue.GenerateStatus().terminal:
            return found


async def poll_once_then_get(queue: AsyncResultQueue) -> list[Any]:
    """Looks before each read."""
    found = []
    while not queue.GenerateStatus().terminal:
        found.append(await queue.Get())
    return found


async def poll_to_the_end_then_get(queue: AsyncResultQueue) -> list[Any]:
    """Looks until it ended, then reads once."""
    while not queue.GenerateStatus().terminal:  # noqa: ASYNC110 - as users do it
        await asyncio.sleep(0)
    return [await queue.Get()]


async def poll_with_get_no_wait(queue: AsyncResultQueue) -> list[Any]:
    """Never waits by itself: reading lets the loop go on."""
    found = []
    while not queue.GenerateStatus().terminal:
        found.append(await queue.GetNoWait())
    return found


@pytest.mark.parametrize("loop", [get_then_status, poll_once_then_get, poll_to_the_end_then_get, poll_with_get_no_wait])
async def test_the_loops_that_users_write_are_right(
    client: AsyncClient, server: ScriptedServer, loop: Callable[[AsyncResultQueue], Any]
) -> None:
    queue = await start(client, server, [*[tokens(IDS, at, at + 10) for at in range(0, 40, 10)], ended(IDS)])
    found = [one for one in await loop(queue) if one is not None]
    assert [token for one in found for token in one.ids_from_generate] == IDS
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert queue.GeneratedLength() == len(IDS)


async def test_get_with_timeout_waits_that_long_and_no_longer(
    client: AsyncClient, server: ScriptedServer, clock: FakeAsyncClock
) -> None:
    queue = await start(client, server, [Hang()])
    await asyncio.to_thread(server.wait_for_streams, 1)
    waiting = asyncio.create_task(queue.GetWithTimeout(1500))
    await eventually(lambda: clock.waits(1.5), "nobody waits")
    clock.advance(1.4)
    assert not waiting.done()
    clock.advance(0.2)
    assert await waiting is None
    assert await queue.GetWithTimeout(0) is None
    with pytest.raises(ValueError, match="-1"):
        await queue.GetWithTimeout(-1)


async def test_a_cancelled_get_takes_nothing(client: AsyncClient, server: ScriptedServer) -> None:
    """By a timeout or otherwise: the next read gets the token, and the stream is as it was."""
    go = threading.Event()
    queue = await start(client, server, [tokens(IDS, 0, 7), go, tokens(IDS, 7), ended(IDS)])
    assert await queue.Get() is not None
    waiting = asyncio.create_task(queue.Get())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.Get()
    go.set()
    assert await rest(queue) == IDS[7:]
    assert len(server.requests("GeneratedElements")) == 1


async def test_several_tasks_may_read_one_queue(client: AsyncClient, server: ScriptedServer) -> None:
    """Each token goes to one of them, and all of them hear of the end."""
    go = threading.Event()
    queue = await start(client, server, [go, *[tokens(IDS, at, at + 1) for at in range(40)], ended(IDS)])
    readers = [asyncio.create_task(rest(queue)) for _ in range(5)]
    await asyncio.sleep(0)
    go.set()
    found = await asyncio.gather(*readers)
    assert sorted(token for one in found for token in one) == IDS


async def test_a_release_wakes_a_blocked_get(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, [Hang()])
    waiting = asyncio.create_task(queue.Get())
    await asyncio.to_thread(server.wait_for_streams, 1)
    server.expect("ReleaseRequest", RELEASED)
    await client.release_request(HANDLE)
    with pytest.raises(RequestReleasedError):
        await waiting
    with pytest.raises(RequestReleasedError):
        await queue.GetNoWait()
    await asyncio.to_thread(server.wait_for_streams, 0)


async def test_closing_wakes_a_blocked_get_and_ends_its_stream(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, [tokens(IDS, 0, 3), Hang()])
    assert await queue.Get() is not None
    waiting = asyncio.create_task(queue.Get())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(UnavailableError) as caught:
        await waiting
    assert caught.value.reason == "CLIENT_CLOSED"
    await asyncio.to_thread(server.wait_for_streams, 0)
    with pytest.raises(UnavailableError):
        await client.server_info()
    await client.close()


async def test_one_get_takes_ten_thousand_tokens_of_an_ended_request(
    client: AsyncClient, server: ScriptedServer
) -> None:
    ids = list(range(10_000))
    server.expect("GetRequest", got(ended_info(ids)))
    server.expect("GeneratedElements", [*[tokens(ids, at, at + 500) for at in range(0, len(ids), 500)], ended(ids)])
    queue = await client.open_queue(HANDLE)
    elements = await queue.Get()
    assert elements is not None
    assert elements.ids_from_generate == ids
    assert await queue.Get() is None


async def test_an_unread_queue_knows_its_length_and_its_end(
    client: AsyncClient, server: ScriptedServer, clock: FakeAsyncClock, path: str
) -> None:
    """Beyond its window nothing arrives; the session says so, and without one the client looks once a second."""
    ids = list(range(3 * WINDOW))
    if path == "streams":
        server.expect("GetRequest", got(running_info(2 * WINDOW)), got(ended_info(ids)))
    parts = [tokens(ids, at, at + 1024) for at in range(0, len(ids), 1024)]
    queue = await start(client, server, [*parts, ended(ids)])
    if path == "streams":
        await eventually(lambda: clock.waits(1.0), "nobody waits")
        clock.advance(1.0)
        await eventually(lambda: queue.GeneratedLength() == 2 * WINDOW, "two windows are not filled")
        await eventually(lambda: clock.waits(1.0), "nobody waits")
        clock.advance(1.0)
    await eventually(lambda: queue.GeneratedLength() == len(ids), "not all ids come")
    assert queue.GenerateStatus() is GenerateStatus.Generating
    assert await rest(queue) == ids


async def test_a_failed_end_raises_once_nothing_is_unread(client: AsyncClient, server: ScriptedServer) -> None:
    fault = Failure(grpc.StatusCode.INTERNAL, "out of luck.", reason="ENGINE_FAULT")
    queue = await start(client, server, [tokens(IDS, 0, 7), fault])
    await eventually(lambda: queue.GeneratedLength() == 7, "not all ids come")
    assert await queue.Get() is not None
    with pytest.raises(InternalServerError, match="out of luck"):
        await queue.Get()
    assert queue.GenerateStatus() is GenerateStatus.InternalError


async def test_dropping_the_first_queue_keeps_the_request(client: AsyncClient, server: ScriptedServer) -> None:
    first = await start(client, server, [tokens(IDS, 0, 1), Hang()])
    server.expect("GetRequest", got(running_info()))
    server.expect("GeneratedElements", [tokens(IDS, 0, 1), Hang()])
    second = await client.open_queue(HANDLE)
    for queue in (first, second):
        assert await queue.Get() is not None
    del queue, first
    gc.collect()
    await asyncio.sleep(0.01)
    assert server.live_streams == 2
    del second
    gc.collect()
    await asyncio.to_thread(server.wait_for_streams, 1)


async def test_a_queue_belongs_to_its_loop(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, [tokens(IDS), ended(IDS)])
    calls: list[Callable[[], Any]] = [queue.Get, client.server_info]
    for call in calls:
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(_run_elsewhere, call)
    assert await rest(queue) == IDS


def _run_elsewhere(call: Callable[[], Any]) -> None:
    asyncio.run(call())
