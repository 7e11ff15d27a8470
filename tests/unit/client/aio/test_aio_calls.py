"""Calls of the asynchronous client: tried again like the other's, and what cancelling them leaves behind: nothing."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any

import grpc
import pytest
from headrace import (
    AsyncClient,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    RetryPolicy,
    UnavailableError,
)
from headrace_proto.v1 import engine_service_pb2, status_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from headrace_proto.wire.transport import CallError
from support.clocks.async_clock import FakeAsyncClock
from support.clocks.waiting import comes, happens
from support.scripted.replies import Failure
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import HANDLE, accepted, ended
from unit.client.aio.aio_gates import Gate, cancelled

DOWN = Failure(grpc.StatusCode.UNAVAILABLE, "the engine is restarting its core.", reason="CORE_RESTARTING")
FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "256 requests wait.", reason="QUEUE_FULL", retry_after=1.25)
INFO = engine_service_pb2.GetServerInfoResponse(name="e1")


# Tried again.


async def test_a_lost_start_is_sent_again_with_the_next_attempt(client: AsyncClient, server: ScriptedServer) -> None:
    server.expect("StartRequest", DOWN, DOWN, accepted())
    server.expect("GeneratedElements", [ended([])])
    await (await client.start_request("smol", "Hello"))[1].Get()
    sent = server.requests("StartRequest")
    assert [request.attempt for request in sent] == [0, 1, 2]
    assert len({request.request_id for request in sent}) == 1


async def test_a_timeout_is_a_number_or_without_bounds(client: AsyncClient, server: ScriptedServer) -> None:
    server.expect("GetServerInfo", INFO, INFO)
    for timeout in (math.inf, 1e30):
        assert (await client.server_info(timeout=timeout)).name == "e1"
    for call in (client.server_info, partial(client.sync_request, HANDLE)):
        with pytest.raises(InvalidRequestError, match="timeout = nan: must be a number of seconds"):
            await call(timeout=math.nan)


class Stuck:
    """A transport that answers nothing until it is closed; then it says that the call was cancelled."""

    def __init__(self) -> None:
        self.asked = 0
        self.waits = asyncio.Event()
        self._over = asyncio.Event()

    async def unary(self, method: str, request: Any, *, timeout: float | None) -> Any:  # noqa: ASYNC109
        self.asked += 1
        self.waits.set()
        await self._over.wait()
        raise CallError(status_pb2.Status(code=1, message="the call was cancelled"))

    def stream(self, method: str, request: Any, *, timeout: float | None) -> Any:
        raise NotImplementedError

    def session(self, method: str) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        self._over.set()


async def test_closing_ends_calls_at_once_whatever_the_transport_says() -> None:
    stuck = Stuck()
    client = AsyncClient(stuck)
    call = asyncio.ensure_future(client.sync_request(HANDLE))
    await happens(stuck.waits, "nothing is asked")
    await client.close()
    with pytest.raises(UnavailableError) as caught:
        await call
    assert (caught.value.reason, stuck.asked) == ("CLIENT_CLOSED", 1)


async def test_the_servers_delay_wins_and_patience_ends(
    client: AsyncClient, server: ScriptedServer, clock: FakeAsyncClock
) -> None:
    later = Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=7.5)
    server.expect("GetServerInfo", later, INFO, *[later] * 4)
    assert (await client.server_info()).name == "e1"
    assert clock.slept == [7.5]
    with pytest.raises(UnavailableError):
        await client.server_info(timeout=29.0)


async def test_overload_is_raised_at_once_by_default(server: ScriptedServer, clock: FakeAsyncClock) -> None:
    server.expect("GetServerInfo", FULL, FULL, INFO)
    async with AsyncClient(server.address, clock=clock) as client:
        with pytest.raises(OverloadedError):
            await client.server_info()
    async with AsyncClient(server.address, clock=clock, retry=RetryPolicy(retry_overload=True)) as client:
        assert (await client.server_info()).name == "e1"
    assert clock.slept == [1.25]


async def test_a_call_ends_with_its_timeout(client: AsyncClient, server: ScriptedServer) -> None:
    server.hold("GetServerInfo")
    with pytest.raises(DeadlineError):
        await client.server_info(timeout=0.1)


# Cancelled.


@pytest.mark.parametrize("verb", ["sync_request", "get_request", "stop_request", "release_request"])
async def test_a_cancelled_call_ends_on_the_wire(client: AsyncClient, server: ScriptedServer, verb: str) -> None:
    name = "".join(part.capitalize() for part in verb.split("_"))
    gate = Gate(wire.ReleaseRequestResponse())
    server.expect(name, gate)
    call = asyncio.create_task(getattr(client, verb)(HANDLE))
    await asyncio.to_thread(comes, gate.asked, "nothing is asked")
    await cancelled(call)
    gate.open.set()
    server.expect("GetServerInfo", INFO)
    assert (await client.server_info()).name == "e1"


class EndlessPauses(FakeAsyncClock):
    """A clock whose pauses last until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.pausing = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.pausing.set()
        await asyncio.Event().wait()


async def test_a_pause_between_attempts_can_be_cancelled(server: ScriptedServer) -> None:
    """Nothing is asked after it."""
    clock = EndlessPauses()
    server.expect("GetServerInfo", Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=25.0))
    async with AsyncClient(server.address, clock=clock) as client:
        call = asyncio.create_task(client.server_info())
        await happens(clock.pausing, "the client does not pause")
        await cancelled(call)
    assert len(server.requests("GetServerInfo")) == 1


@pytest.mark.parametrize("request_id", [None, "r1"])
@pytest.mark.parametrize("way", ["start_request", "generate"])
async def test_closing_ends_a_start_with_an_error_not_a_cancel(way: str, request_id: str | None) -> None:
    """A group of tasks takes a cancelled one for one that it need not tell of."""
    stuck = Stuck()
    client = AsyncClient(stuck)
    begin: Any = client.start_request if way == "start_request" else lambda *a, **k: anext(client.generate(*a, **k))
    call = asyncio.ensure_future(begin("smol", "Hello", request_id=request_id))
    await happens(stuck.waits, "nothing is asked")
    await client.close()
    await asyncio.wait([call])
    assert not call.cancelled()
    error = call.exception()
    assert isinstance(error, UnavailableError)
    assert (error.reason, stuck.asked) == ("CLIENT_CLOSED", 1)
