"""Reads that give on what arrives, in the task that brings it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from headrace import AsyncClient, AsyncResultQueue, RequestReleasedError
from headrace.types import GeneratedElements
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import eventually
from support.scripted.replies import Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended, tokens

IDS = list(range(40))


async def start(client: AsyncClient, server: ScriptedServer, number: int, *streams: list[Any]) -> AsyncResultQueue:
    """A queue whose streams, one after the other, play these steps."""
    handle = f"e1/i1/{number}"
    server.expect("StartRequest", accepted(handle))
    server.expect("GeneratedElements", *streams, when=lambda request: request.handle == handle)
    return (await client.start_request("smol", "Hello"))[1]


class Taker:
    """Takes ids, as long as `more` says."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.more = True

    def __call__(self, elements: GeneratedElements) -> bool:
        self.ids += elements.ids_from_generate
        return self.more


async def test_all_is_given_on_in_order_to_the_end(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), tokens(IDS, 7, 30), tokens(IDS, 30), ended(IDS)])
    take = Taker()
    assert await queue.pass_on(take)
    assert take.ids == IDS
    assert queue.finish_reason is not None
    assert await queue.pass_on(take)
    assert take.ids == IDS


async def test_who_takes_no_more_finds_the_rest_unread(client: AsyncClient, server: ScriptedServer) -> None:
    go = threading.Event()
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), go, tokens(IDS, 7, 20), tokens(IDS, 20), ended(IDS)])
    take = Taker()
    take.more = False
    assert not await queue.pass_on(take)
    assert take.ids == IDS[:7]
    go.set()
    await eventually(lambda: queue.GeneratedLength() == len(IDS), "not all ids come")
    assert take.ids == IDS[:7]
    take.more = True
    assert await queue.pass_on(take)
    assert take.ids == IDS


async def test_what_a_taker_raises_ends_its_read_alone(client: AsyncClient, server: ScriptedServer) -> None:
    go = threading.Event()
    queues = [
        await start(client, server, number, [tokens(IDS, 0, 7), go, tokens(IDS, 7), ended(IDS)]) for number in (1, 2)
    ]
    take, others = Taker(), Taker()

    def refuse(elements: GeneratedElements) -> bool:
        if elements.position:
            raise KeyError(elements.position)
        return take(elements)

    reads = [asyncio.create_task(queue.pass_on(one)) for queue, one in zip(queues, (refuse, others), strict=True)]
    await eventually(lambda: len(take.ids) == len(others.ids) == 7, "the first ids do not come")
    go.set()
    with pytest.raises(KeyError, match="7"):
        await reads[0]
    assert await reads[1]
    assert others.ids == IDS


async def test_a_cancelled_one_takes_nothing_more(client: AsyncClient, server: ScriptedServer) -> None:
    go = threading.Event()
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), go, tokens(IDS, 7), ended(IDS)])
    take = Taker()
    reading = asyncio.create_task(queue.pass_on(take))
    await eventually(lambda: len(take.ids) == 7, "the first ids do not come")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go.set()
    found = [token async for one in queue for token in one.ids_from_generate]
    assert (take.ids, found) == (IDS[:7], IDS[7:])


async def test_a_release_ends_it(client: AsyncClient, server: ScriptedServer) -> None:
    queue = await start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
    take = Taker()
    reading = asyncio.create_task(queue.pass_on(take))
    await eventually(lambda: len(take.ids) == 7, "the first ids do not come")
    server.expect("ReleaseRequest", wire.ReleaseRequestResponse())
    await client.release_request(queue.handle)
    with pytest.raises(RequestReleasedError):
        await reading
