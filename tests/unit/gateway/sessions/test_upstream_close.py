"""The end of a stream to an engine reaches all of its readers, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from headrace_gateway import status
from headrace_gateway.access.uses import OwnerUses, Use
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.upstream import EngineLink, EngineLinks
from headrace_proto.v1.session_pb2 import OwnerUsage
from headrace_proto.v1.status_pb2 import Status
from support.clocks.waiting import LIMIT


class Channels:
    """Readers of a stream, of whom one fails in each portion."""

    def __init__(self) -> None:
        self.readers = 1000
        self.begun = asyncio.Event()

    def fail_in_portions(self, failure: Status) -> Iterator[None]:
        while self.readers:
            self.readers -= 1
            self.begun.set()
            yield

    def fail(self, failure: Status) -> None:
        self.readers = 0


class Unreachable(SimpleNamespace):
    """An engine that refuses every stream."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    async def reach(self) -> None:
        raise status.unknown_engine(self.name, [])


async def test_an_engine_that_leaves_meanwhile_keeps_no_reader_waiting() -> None:
    reached = asyncio.Event()
    reached.set()
    engine: Any = Unreachable(name="e1", reached=reached, load=Mock(), cached=Mock())
    link = EngineLink(engine, SessionLimits(), Mock())
    channels: Any = Channels()
    link.channels = channels
    await asyncio.wait_for(channels.begun.wait(), LIMIT)
    assert channels.readers
    await link.close()
    assert channels.readers == 0


async def test_an_engine_that_leaves_takes_nothing_of_its_successor() -> None:
    """As where a list of members gives a name to another address, which reports before the first is gone."""
    uses = OwnerUses(lambda owner, tokens: None)
    links = EngineLinks(Mock(), SessionLimits(), uses)
    first, second = (
        Unreachable(name="e1", reached=asyncio.Event(), load=Mock(), cached=Mock(), address=address) for address in "ab"
    )
    for engine in (first, second):
        links.follow(engine)  # type: ignore[arg-type]
    uses.update("e1", [OwnerUsage(owner="ann", requests=3)])
    await links.leave(first)  # type: ignore[arg-type]
    assert uses.total("ann") == Use(requests=3)
    await links.leave(second)  # type: ignore[arg-type]
    assert uses.total("ann") == Use()
