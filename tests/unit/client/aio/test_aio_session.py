"""The asynchronous client's session over a real channel: one stream and two tasks for all, replaced when lost."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest
from headrace import AsyncClient, AsyncResultQueue, AuthError, InternalServerError, RetryPolicy, UnavailableError
from headrace_proto.v1 import engine_service_pb2
from support.clocks.async_clock import FakeAsyncClock
from support.clocks.waiting import eventually
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended, tokens

IDS = list(range(30))
CUT = Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
INFO = engine_service_pb2.GetServerInfoResponse(name="e1")


@pytest.fixture
def path() -> str:
    """Sessions alone."""
    return "session"


def client_tasks() -> list[str]:
    """Names of the tasks of clients, in this loop."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("headrace-"))


async def start(client: AsyncClient, server: ScriptedServer, number: int, *steps: list[Any]) -> AsyncResultQueue:
    """A queue whose channels play these steps, one list after the other."""
    handle = f"e1/i1/{number}"
    server.expect("StartRequest", accepted(handle))
    server.expect("GeneratedElements", *steps, when=lambda request: request.handle == handle)
    return (await client.start_request("smol", "Hello"))[1]


async def rest(queue: AsyncResultQueue) -> list[int]:
    """All ids to the end."""
    return [token async for one in queue for token in one.ids_from_generate]


async def first(queue: AsyncResultQueue) -> list[int]:
    """What the next read gives."""
    elements = await queue.Get()
    assert elements is not None
    return elements.ids_from_generate


async def test_many_queues_share_a_stream_and_two_tasks(client: AsyncClient, server: ScriptedServer) -> None:
    server.expect("GetServerInfo", INFO)
    await client.server_info()
    assert (server.sessions, client_tasks()) == ([], [])
    queues = [await start(client, server, number, [tokens(IDS), ended(IDS)]) for number in range(20)]
    assert await asyncio.gather(*[rest(queue) for queue in queues]) == [IDS] * 20
    assert len(server.sessions) == 1
    await eventually(lambda: client_tasks() == ["headrace-reader", "headrace-writer"], "there are not two tasks")
    options = [request.options.client for request in server.said if request.HasField("options")]
    assert [name.split()[0] for name in options] == ["headrace"]


async def test_what_was_read_to_its_end_is_detached(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, 1, [tokens(IDS), ended(IDS)])
    other = await start(client, server, 2, [tokens(IDS), ended(IDS)])
    await eventually(lambda: other.GeneratedLength() == len(IDS), "not all ids come")
    assert await rest(queue) == IDS
    await asyncio.to_thread(server.wait_until_said, lambda request: list(request.detach) == [1])
    assert all(2 not in request.detach for request in server.said)


@pytest.mark.parametrize("how", [None, CUT])
async def test_a_cut_session_resumes_in_another_where_all_were(
    client: AsyncClient, server: ScriptedServer, how: Failure | None
) -> None:
    queues = [
        await start(client, server, number, [tokens(IDS, 0, number), Hang()], [tokens(IDS, number), ended(IDS)])
        for number in range(1, 6)
    ]
    found = [await first(queue) for queue in queues]
    server.cut_sessions(how)
    assert [begin + await rest(queue) for begin, queue in zip(found, queues, strict=True)] == [IDS] * 5
    assert [request.from_position for request in server.requests("GeneratedElements")[5:]] == [1, 2, 3, 4, 5]


async def test_a_client_leaves_a_server_that_has_nothing_more_to_say(
    client: AsyncClient, server: ScriptedServer
) -> None:
    """Which ends the stream only then: a write to one that has ended costs what was not read yet."""
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), Hang()], [tokens(IDS, 7), ended(IDS)])
    assert await first(queue) == IDS[:7]
    server.take_leave()
    assert await rest(queue) == IDS[7:]


def gone(server: ScriptedServer, clock: FakeAsyncClock) -> bool:
    """Whether nobody reads there any more, after five more seconds."""
    clock.advance(5)
    return server.live_streams == 0


async def test_a_silent_server_is_left_for_another(server: ScriptedServer, clock: FakeAsyncClock) -> None:
    other = ScriptedServer().start()
    server.session_times, server.answers_pings = (10.0, 25.0), False
    client = AsyncClient(f"{server.address},{other.address}", clock=clock)
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
    assert await first(queue) == IDS[:7]
    other.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
    await eventually(lambda: clock.waits(10.0), "nobody waits for the next ping")
    clock.advance(10)
    await asyncio.to_thread(server.wait_until_said, lambda request: request.HasField("ping"))
    await eventually(lambda: gone(server, clock), "the silent server is not left")
    assert await rest(queue) == IDS[7:]
    assert other.requests("GeneratedElements")[0].from_position == 7
    await client.close()
    await asyncio.to_thread(other.stop)
    other.check()


async def test_calls_and_sessions_fail_over_to_another_address(server: ScriptedServer, clock: FakeAsyncClock) -> None:
    other = ScriptedServer().start()
    async with AsyncClient(f"{server.address},{other.address}", clock=clock) as client:
        queue = await start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
        assert await first(queue) == IDS[:7]
        other.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
        other.expect("GetServerInfo", INFO)
        await asyncio.to_thread(server.stop)
        assert await rest(queue) == IDS[7:]
        assert (await client.server_info()).name == "e1"
        other.expect("ReleaseRequest", lambda request: _released())
    await asyncio.to_thread(other.stop)
    other.check()


def _released() -> Any:
    from headrace_proto.v1 import request_service_pb2

    return request_service_pb2.ReleaseRequestResponse()


@pytest.mark.parametrize(
    "refusal",
    [
        Failure(grpc.StatusCode.INVALID_ARGUMENT, "session is not supported.", reason="NOT_SUPPORTED"),
        Failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ],
)
async def test_a_server_without_sessions_is_read_by_streams(
    client: AsyncClient, server: ScriptedServer, refusal: Failure
) -> None:
    server.session_refusal = refusal
    queues = [await start(client, server, number, [tokens(IDS), ended(IDS)]) for number in range(3)]
    assert [await rest(queue) for queue in queues] == [IDS] * 3
    assert server.said == []
    await eventually(lambda: client_tasks() == ["headrace-reader"], "the writer goes on")


async def test_a_session_without_permission_fails_its_queues(client: AsyncClient, server: ScriptedServer) -> None:
    server.session_refusal = Failure(grpc.StatusCode.UNAUTHENTICATED, "no key.", reason="BAD_API_KEY")
    server.expect("StartRequest", accepted("e1/i1/1"))
    queue = (await client.start_request("smol", "Hello"))[1]
    with pytest.raises(AuthError, match="no key"):
        await queue.Get()
    server.session_refusal = None
    assert await rest(await start(client, server, 2, [tokens(IDS), ended(IDS)])) == IDS


async def test_a_long_outage_wakes_get_and_the_queue_resumes(server: ScriptedServer, clock: FakeAsyncClock) -> None:
    client = AsyncClient(server.address, clock=clock, retry=RetryPolicy(give_up_after=30.0))
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
    assert await first(queue) == IDS[:7]
    await asyncio.to_thread(server.stop)
    with pytest.raises(UnavailableError, match="no answer from 127"):
        await queue.Get()
    assert clock.now >= 1030.0
    server.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
    await asyncio.to_thread(server.start)
    found: list[int] = []
    while len(found) < len(IDS) - 7:
        try:
            found += await first(queue)
        except UnavailableError:
            continue
    assert found == IDS[7:]
    await client.close()


async def test_a_defect_of_the_driver_is_raised_by_reads(
    client: AsyncClient, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace._streaming.session import ClientSession

    def break_down(session: ClientSession) -> None:
        raise ZeroDivisionError

    queue = await start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
    assert await first(queue) == IDS[:7]
    monkeypatch.setattr(ClientSession, "outgoing", break_down)
    waiting = asyncio.create_task(queue.Get())
    await asyncio.sleep(0)
    client._connection.session._wake.notify_all()
    with pytest.raises(InternalServerError, match="ZeroDivisionError"):
        await waiting


async def test_closing_ends_the_tasks(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, 1, [tokens(IDS, 0, 3), Hang()])
    assert await first(queue) == IDS[:3]
    await client.close()
    assert client_tasks() == []
    await asyncio.to_thread(server.wait_for_streams, 0)


async def test_a_dropped_client_ends_with_its_tasks(server: ScriptedServer) -> None:
    client = AsyncClient(server.address)
    queue = await start(client, server, 1, [tokens(IDS), ended(IDS)])
    assert await rest(queue) == IDS
    del client, queue
    gc.collect()
    await eventually(lambda: client_tasks() == [], "tasks go on")
    await asyncio.to_thread(server.wait_for_streams, 0)
