"""A core that is lost, or refuses, as it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.errors import BadModel, HeadraceError, OutOfMemory
from headrace_engine.model_types import ModelPhase, ModelProgress, ModelState
from headrace_engine.result_types import FinishReason
from support.clocks.clock import settle
from support.engine.restarts import by_prompt, ended, lose
from support.engine.rig import NAME, Rig
from support.scripted.core import READY


class TestWarmUp:
    async def test_a_core_that_dies_as_it_warms_up_is_replaced(self, rig: Rig) -> None:
        core = await rig.run()
        await rig.start()
        core.begin(rig.added().key)
        rig.launcher.ready_at_once = None
        second = await lose(rig)
        third = await lose(rig)
        assert len({id(each) for each in (core, second, third)}) == 3
        third.ready()
        await settle()
        assert by_prompt(third) == [5]
        assert rig.engine.live_requests == 1

    async def test_a_core_that_dies_as_it_gets_ready_is_replaced(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        rig.launcher.ready_at_once = None
        second = await lose(rig)
        second.ready()
        third = await lose(rig)
        assert third is not second
        assert second.added == []
        third.ready()
        await settle()
        assert len(third.added) == 1
        assert len(rig.launcher.cores) == 3

    @pytest.mark.parametrize(("reason", "kind"), [("OUT_OF_MEMORY", OutOfMemory), ("BAD_MODEL", BadModel)])
    async def test_a_core_that_says_why_it_cannot_start_fails_the_model(
        self, rig: Rig, reason: str, kind: type[HeadraceError]
    ) -> None:
        await rig.run()
        accepted = await rig.start()
        rig.launcher.ready_at_once = None
        (await lose(rig)).fail(reason, "lower one of them")
        await settle()
        view = rig.engine.get_model(NAME)
        assert view.state is ModelState.FAILED
        assert isinstance(view.failure, kind)
        sequence = await ended(rig, accepted)
        assert sequence.end is not None
        assert sequence.end.finish_reason is FinishReason.ERROR
        assert sequence.end.error is not None
        assert sequence.end.error.message == "lower one of them"
        assert rig.core.closed

    async def test_a_core_that_cannot_be_launched_fails_the_model(self, rig: Rig) -> None:
        await rig.run()
        rig.launcher.error = OSError("no more processes")
        await lose(rig)
        failure = rig.engine.get_model(NAME).failure
        assert failure is not None
        assert "no more processes" in failure.message

    async def test_a_failed_model_can_be_installed_and_started_again(self, rig: Rig) -> None:
        await rig.run()
        await rig.launcher.fail_restart()
        assert rig.state is ModelState.FAILED
        await rig.run()
        assert rig.state is ModelState.RUNNING
        await rig.start()

    async def test_what_is_effective_is_what_the_new_core_chose(self, rig: Rig) -> None:
        await rig.run()
        rig.launcher.ready_at_once = None
        core = await lose(rig)
        core.say(ModelProgress(ModelPhase.LOADING, 5, 10))
        view = rig.engine.get_model(NAME)
        assert view.progress is not None
        assert (view.state, view.progress.bytes_done) == (ModelState.RUNNING, 5)
        core.say(replace(READY, devices=("CPU other",)))
        await settle()
        view = rig.engine.get_model(NAME)
        assert view.effective is not None
        assert (view.effective.devices, view.progress) == (("CPU other",), None)
