"""A core that is lost, or refuses, as it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.errors import BadModel, HeadraceError, OutOfMemory
from headrace_engine.messages import CoreProgress
from headrace_engine.model_types import ModelPhase, ModelState
from headrace_engine.result_types import FinishReason
from unit.engine.bench import NAME, Bench
from unit.engine.clock import settle
from unit.engine.restarts import by_prompt, ended, lose
from unit.engine.scripted_core import READY


class TestWarmUp:
    async def test_a_core_that_dies_as_it_warms_up_is_replaced(self, bench: Bench) -> None:
        core = await bench.run()
        await bench.start()
        core.begin(bench.added().key)
        bench.launcher.ready_at_once = None
        second = await lose(bench)
        third = await lose(bench)
        assert len({id(each) for each in (core, second, third)}) == 3
        third.ready()
        await settle()
        assert by_prompt(third) == [5]
        assert bench.engine.live_requests == 1

    async def test_a_core_that_dies_as_it_gets_ready_is_replaced(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        bench.launcher.ready_at_once = None
        second = await lose(bench)
        second.ready()
        third = await lose(bench)
        assert third is not second
        assert second.added == []
        third.ready()
        await settle()
        assert len(third.added) == 1
        assert len(bench.launcher.cores) == 3

    @pytest.mark.parametrize(("reason", "kind"), [("OUT_OF_MEMORY", OutOfMemory), ("BAD_MODEL", BadModel)])
    async def test_a_core_that_says_why_it_cannot_start_fails_the_model(
        self, bench: Bench, reason: str, kind: type[HeadraceError]
    ) -> None:
        await bench.run()
        accepted = await bench.start()
        bench.launcher.ready_at_once = None
        (await lose(bench)).fail(reason, "lower one of them")
        await settle()
        view = bench.engine.get_model(NAME)
        assert view.state is ModelState.FAILED
        assert isinstance(view.failure, kind)
        sequence = await ended(bench, accepted)
        assert sequence.end is not None
        assert sequence.end.finish_reason is FinishReason.ERROR
        assert sequence.end.error is not None
        assert sequence.end.error.message == "lower one of them"
        assert bench.core.closed

    async def test_a_core_that_cannot_be_launched_fails_the_model(self, bench: Bench) -> None:
        await bench.run()
        bench.launcher.error = OSError("no more processes")
        await lose(bench)
        failure = bench.engine.get_model(NAME).failure
        assert failure is not None
        assert "no more processes" in failure.message

    async def test_a_failed_model_can_be_installed_and_started_again(self, bench: Bench) -> None:
        await bench.run()
        await bench.launcher.fail_restart()
        assert bench.state is ModelState.FAILED
        await bench.run()
        assert bench.state is ModelState.RUNNING
        await bench.start()

    async def test_what_is_effective_is_what_the_new_core_chose(self, bench: Bench) -> None:
        await bench.run()
        bench.launcher.ready_at_once = None
        core = await lose(bench)
        core.say(CoreProgress(ModelPhase.LOADING, 5, 10))
        view = bench.engine.get_model(NAME)
        assert view.progress is not None
        assert (view.state, view.progress.bytes_done) == (ModelState.RUNNING, 5)
        core.say(replace(READY, devices=("CPU other",)))
        await settle()
        view = bench.engine.get_model(NAME)
        assert view.effective is not None
        assert (view.effective.devices, view.progress) == (("CPU other",), None)
