"""Starts with the same key that meet while one of them is in progress."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.errors import (
    FailedPrecondition,
    HeadraceError,
    ResourceExhausted,
    Unavailable,
)
from headrace_engine.model_types import ModelState
from headrace_engine.request_types import AcceptedRequest
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.engine.tokenising import LONG, Tokenising, run_wide


class TestMeetings:
    """Something else happens while a long prompt is tokenised."""

    async def outcome(self, rig: Rig, tokenising: Tokenising, start: asyncio.Task[AcceptedRequest]) -> HeadraceError:
        await settle()
        tokenising.go()
        with pytest.raises(HeadraceError) as caught:
            await start
        assert all(core.added == [] for core in rig.launcher.cores)
        return caught.value

    async def held(self, rig: Rig) -> asyncio.Task[AcceptedRequest]:
        await run_wide(rig)
        start = asyncio.create_task(rig.start(LONG))
        await settle()
        return start

    async def test_its_model_stops(self, rig: Rig, tokenising: Tokenising) -> None:
        start = await self.held(rig)
        await rig.engine.stop_model(NAME)
        error = await self.outcome(rig, tokenising, start)
        assert isinstance(error, FailedPrecondition)
        assert (error.reason, error.state) == ("MODEL_NOT_RUNNING", ModelState.STOPPED)

    async def test_its_model_is_replaced_by_another_of_the_same_name(self, rig: Rig, tokenising: Tokenising) -> None:
        start = await self.held(rig)
        await rig.engine.stop_model(NAME)
        await rig.engine.release_model(NAME)
        await rig.run(max_batch=1)
        error = await self.outcome(rig, tokenising, start)
        assert (error.reason, rig.state) == ("MODEL_NOT_RUNNING", ModelState.RUNNING)

    async def test_its_model_stops_and_starts_again(self, rig: Rig, tokenising: Tokenising) -> None:
        start = await self.held(rig)
        await rig.engine.stop_model(NAME)
        await rig.engine.start_model(NAME)
        tokenising.go()
        await start
        assert len(rig.core.added) == 1

    async def test_its_core_dies(self, rig: Rig, tokenising: Tokenising) -> None:
        start = await self.held(rig)
        rig.launcher.ready_at_once = None
        rig.core.die("killed by signal 9")
        error = await self.outcome(rig, tokenising, start)
        assert isinstance(error, Unavailable)
        assert error.reason == "CORE_RESTARTING"

    async def test_the_engine_drains(self, rig: Rig, tokenising: Tokenising) -> None:
        start = await self.held(rig)
        await rig.engine.drain(0)
        assert isinstance(await self.outcome(rig, tokenising, start), Unavailable)

    async def test_the_queue_fills(self, rig: Rig, tokenising: Tokenising) -> None:
        core = await run_wide(rig, max_batch=1, max_waiting=0)
        start = asyncio.create_task(rig.start(LONG))
        await settle()
        await rig.start()
        core.step(scheduled={rig.added().key: 0})
        tokenising.go()
        with pytest.raises(ResourceExhausted):
            await start
