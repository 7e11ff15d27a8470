"""Releases for engines that cannot be reached: sent when they can be, dropped when they leave the list."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from headrace_gateway.forwarding.owed_releases import OwedReleases
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import LIMIT


class Lost:
    """An engine that cannot be reached until the test says so, and the handles that it was told to release."""

    def __init__(self, name: str) -> None:
        self.name, self.reached = name, asyncio.Event()
        self.released: list[str] = []
        self.told = asyncio.Event()
        self.requests = SimpleNamespace(ReleaseRequest=self._release)

    async def _release(self, request: wire.ReleaseRequestRequest, **_: Any) -> None:
        self.released.append(request.handle)
        self.told.set()


@pytest.fixture
async def owed():
    owed = OwedReleases()
    yield owed
    await owed.close()


def add(owed: OwedReleases, engine: Lost, handle: str) -> None:
    owed.add(engine, wire.ReleaseRequestRequest(handle=handle), ())  # type: ignore[arg-type]


async def test_one_is_sent_once_its_engine_is_reached(owed: OwedReleases) -> None:
    engine = Lost("e1")
    add(owed, engine, "a")
    engine.reached.set()
    await asyncio.wait_for(engine.told.wait(), LIMIT)
    assert engine.released == ["a"]


async def test_an_engine_that_takes_a_name_over_waits_for_nobody(owed: OwedReleases) -> None:
    """As where a list of members gives a name to another address: what is owed to the first holds up nothing."""
    first, second = Lost("e1"), Lost("e1")
    add(owed, first, "a")
    second.reached.set()
    add(owed, second, "b")
    await asyncio.wait_for(second.told.wait(), LIMIT)
    assert (first.released, second.released) == ([], ["b"])


async def test_what_is_owed_to_an_engine_that_is_gone_is_dropped(owed: OwedReleases) -> None:
    engine = Lost("e1")
    before = asyncio.all_tasks()
    add(owed, engine, "a")
    await owed.leave(engine)  # type: ignore[arg-type]
    assert asyncio.all_tasks() == before
    engine.reached.set()
    add(owed, engine, "b")
    await asyncio.wait_for(engine.told.wait(), LIMIT)
    assert engine.released == ["b"]
