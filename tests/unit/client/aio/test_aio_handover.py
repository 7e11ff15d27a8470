"""A request whose engine is lost, in an event loop: the ends of a move that goes wrong."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from headrace import AsyncClient, InternalServerError
from headrace._streaming.reader import SequenceReader
from support.clocks.waiting import LIMIT
from support.scripted.replies import Failure
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, tokens
from unit.client.api.test_client import RELEASED
from unit.client.api.test_handover import FIRST, IDS, LOST, SECOND


async def test_a_fault_of_a_move_ends_its_queue(
    client: AsyncClient, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: the copy is released, and the reader is told."""

    def land(self: SequenceReader) -> None:
        raise ZeroDivisionError("landed badly")

    monkeypatch.setattr(SequenceReader, "land", land)
    server.expect("StartRequest", accepted(FIRST), accepted(SECOND, handover=1))
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST])
    server.expect("ReleaseRequest", RELEASED)
    _, queue = await client.start_request("smol", "Hi")
    with pytest.raises(InternalServerError, match=r"could not hand the request over .*landed badly"):
        async for _elements in queue:
            pass
    released = await asyncio.to_thread(server.wait_for, "ReleaseRequest")
    assert [one.handle for one in released] == [SECOND]


async def test_a_released_request_is_started_nowhere(client: AsyncClient, server: ScriptedServer) -> None:
    """It is released while no server answers: no copy of it is made when one does."""
    go = threading.Event()

    def start(request: Any) -> Any:
        assert go.wait(LIMIT)
        return Failure(grpc.StatusCode.UNAVAILABLE)

    server.expect("StartRequest", accepted(FIRST), start)
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST])
    server.expect("ReleaseRequest", RELEASED, RELEASED)
    handle, _queue = await client.start_request("smol", "Hi")
    await asyncio.to_thread(server.wait_for, "StartRequest", 2)
    await client.release_request(handle)
    go.set()
    await asyncio.to_thread(server.wait_for, "ReleaseRequest", 2)  # By the move, as it ends.
    assert len(server.requests("StartRequest")) == 2
