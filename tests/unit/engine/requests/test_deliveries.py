"""Streams of results are waited for when an engine goes away."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

from headrace_engine.engine.requests.open_streams import OpenStreams
from headrace_engine.result_types import FinishReason
from headrace_engine.service.program.life import Service
from support.clocks.clock import settle
from support.clocks.waiting import ends, happens
from support.engine.rig import Rig


async def test_t2_a_reader_of_elements_counts_until_it_has_the_end(rig: Rig) -> None:
    core = await rig.run()
    accepted = await rig.start()
    core.step({rig.added().key: 41}, ended={rig.added().key: FinishReason.EOS})
    await rig.sequence(accepted.handle)
    async with aclosing(rig.engine.read(accepted.handle, 0, 0, "")) as reading:
        await anext(reading)
        assert await rig.engine.sessions.streams.ended(0) == 1
        assert [result async for result in reading if result.end is None] == []
    assert await rig.engine.sessions.streams.ended(600) == 0


async def test_t2_a_session_counts_until_it_is_closed(rig: Rig) -> None:
    session = rig.engine.sessions.open()
    await rig.engine.drain(600)
    assert await rig.engine.sessions.streams.ended(0) == 1
    session.close()
    session.close()
    assert await rig.engine.sessions.streams.ended(600) == 0


async def test_t2_a_drain_waits_for_who_reads_slowly() -> None:
    """However long that takes, within the limit: calls are cut only then."""
    streams, drained = OpenStreams(), asyncio.Event()

    async def drain(limit: float) -> None:
        drained.set()

    streams.begin()
    service = cast(
        Any, SimpleNamespace(_engine=SimpleNamespace(drain=drain, sessions=SimpleNamespace(streams=streams)))
    )
    ending = asyncio.create_task(Service._let_end(service, 600))
    await happens(drained, "requests are not let end")
    await asyncio.wait([ending], timeout=0)
    assert not ending.done()
    streams.end()
    async with ends("the drain goes on"):
        await ending


async def test_a_drain_cut_by_a_second_signal_logs_no_error(rig: Rig) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await rig.run()
    await rig.start()
    draining = asyncio.create_task(rig.engine.drain(600))
    await asyncio.wait([draining], timeout=0)
    await settle()
    assert not draining.done()
    draining.cancel()
    await asyncio.wait([draining])
    assert draining.cancelled()
    del draining
    gc.collect()
    await settle()
    assert complaints == []
