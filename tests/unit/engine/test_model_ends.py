"""How models are stopped and released."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.engine.registry import RELEASE_MEMORY
from headrace_engine.errors import NotFound
from headrace_engine.model_types import ModelPhase, ModelState
from headrace_engine.result_types import FinishReason, GenerateStatus
from unit.engine.bench import NAME, Bench
from unit.engine.clock import settle
from unit.engine.held import Held
from unit.engine.refusals import not_found, refused


class TestStop:
    async def test_frees_what_the_model_computes_with(self, bench: Bench) -> None:
        core = await bench.run()
        view = await bench.engine.stop_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.STOPPED, ModelState.STOPPED)
        assert core.closed
        assert view.effective is not None
        assert (view.effective.kv_bytes, view.effective.kv_tokens, view.effective.devices) == (0, 0, ())

    async def test_in_its_target_state_it_succeeds(self, bench: Bench) -> None:
        await bench.run()
        for _ in range(2):
            assert (await bench.engine.stop_model(NAME)).state is ModelState.STOPPED

    async def test_running_requests_may_end(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        call = asyncio.create_task(bench.engine.stop_model(NAME))
        await settle()
        view = bench.engine.get_model(NAME)
        assert view.state is ModelState.STOPPING
        assert view.progress is not None
        assert view.progress.phase is ModelPhase.DRAINING
        assert not core.closing
        core.step({bench.added().key: 9}, ended={bench.added().key: FinishReason.MAX_LENGTH})
        assert (await call).state is ModelState.STOPPED
        end = (await bench.sequence(accepted.handle)).end
        assert end is not None
        assert end.finish_reason is FinishReason.MAX_LENGTH

    async def test_after_the_drain_limit_they_are_ended_as_drained(self, bench: Bench) -> None:
        core = await bench.run(drain_limit=0.0)
        accepted = await bench.start()
        key = bench.added().key
        core.step({key: 9})
        await bench.engine.stop_model(NAME)
        sequence = await bench.sequence(accepted.handle)
        assert sequence.end is not None
        assert (sequence.end.finish_reason, sequence.status) == (FinishReason.DRAINED, GenerateStatus.INTERRUPTED)
        assert sequence.generated_length == 1
        assert core.ended == [key]

    async def test_no_new_request_is_taken_from_the_call_on(self, bench: Bench) -> None:
        await bench.run()
        await bench.start()
        await bench.engine.stop_model(NAME, no_wait=True)
        error = await refused(bench.start())
        assert (error.reason, error.state) == ("MODEL_NOT_RUNNING", ModelState.STOPPING)

    async def test_repeated_calls_join(self, bench: Bench) -> None:
        bench.launcher.lingers = True
        core = await bench.run()
        calls = [asyncio.create_task(bench.engine.stop_model(NAME)) for _ in range(3)]
        await settle()
        progress = bench.engine.get_model(NAME).progress
        assert progress is not None
        assert progress.phase is ModelPhase.FREEING
        core.end_close()
        assert [view.state for view in await asyncio.gather(*calls)] == [ModelState.STOPPED] * 3

    async def test_a_call_that_is_cut_leaves_the_work_going(self, bench: Bench) -> None:
        bench.launcher.lingers = True
        core = await bench.run()
        call = asyncio.create_task(bench.engine.stop_model(NAME))
        await settle()
        call.cancel()
        await settle()
        core.end_close()
        await bench.engine.stop_model(NAME)
        assert bench.state is ModelState.STOPPED

    async def test_a_stopped_model_can_be_started_again(self, bench: Bench) -> None:
        first = await bench.run()
        await bench.engine.stop_model(NAME)
        await bench.engine.start_model(NAME)
        assert bench.core is not first
        assert bench.state is ModelState.RUNNING
        await bench.start()
        assert len(bench.core.added) == 1


class TestRelease:
    async def test_frees_the_name(self, bench: Bench) -> None:
        await bench.install()
        view = await bench.engine.release_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.RELEASED, ModelState.RELEASED)
        with pytest.raises(NotFound) as caught:
            bench.engine.get_model(NAME)
        assert caught.value.reason == "UNKNOWN_MODEL"
        await bench.install(max_batch=1)
        assert bench.state is ModelState.INITIAL

    @pytest.mark.parametrize("lingers", [True, False])
    async def test_of_several_at_once_all_succeed_when_the_core_is_gone(self, bench: Bench, lingers: bool) -> None:
        bench.launcher.lingers = lingers
        await bench.run()
        core = await bench.launcher.fail_restart()
        releases = [asyncio.create_task(bench.engine.release_model(NAME)) for _ in range(4)]
        await settle()
        assert [release.done() for release in releases] == [not lingers] * 4
        core.end_close()
        assert {(await release).state for release in releases} == {ModelState.RELEASED}

    async def test_repeated_it_succeeds_for_ten_minutes(self, bench: Bench) -> None:
        await bench.install()
        await bench.engine.release_model(NAME)
        bench.clock.advance(RELEASE_MEMORY)
        assert (await bench.engine.release_model(NAME)).state is ModelState.RELEASED
        bench.clock.advance(1)
        assert (await not_found(bench.engine.release_model(NAME))).reason == "UNKNOWN_MODEL"

    async def test_of_a_name_that_is_taken_again_it_is_a_new_one(self, bench: Bench) -> None:
        for _ in range(2):
            await bench.run()
            assert (await refused(bench.engine.release_model(NAME))).state is ModelState.RUNNING
            await bench.engine.stop_model(NAME)
            await bench.engine.release_model(NAME)
        assert bench.engine.list_models() == []

    async def test_during_an_install_it_ends_it_and_those_who_wait_are_told(self, bench: Bench, held: Held) -> None:
        install = asyncio.create_task(bench.engine.install_model(bench.config()))
        await settle()
        start = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        assert (await bench.engine.release_model(NAME)).state is ModelState.RELEASED
        for call in (install, start):
            error = await refused(call)
            assert (error.reason, error.state) == ("WRONG_STATE", ModelState.RELEASED)
        held.go()
        await settle()
        with pytest.raises(NotFound):
            bench.engine.get_model(NAME)

    async def test_what_a_released_install_reads_does_not_reach_the_next_one(self, bench: Bench, held: Held) -> None:
        await bench.engine.install_model(bench.config(max_batch=1), no_wait=True)
        await settle()
        await bench.engine.release_model(NAME)
        held.go()
        await bench.install(max_batch=2)
        effective = bench.engine.get_model(NAME).effective
        assert effective is not None
        assert effective.config.max_batch == 2

    async def test_a_failed_model_is_released_when_its_core_is_gone(self, bench: Bench) -> None:
        bench.launcher.lingers = True
        await bench.run()
        core = await bench.launcher.fail_restart()
        assert bench.state is ModelState.FAILED
        release = asyncio.create_task(bench.engine.release_model(NAME))
        await settle()
        assert not release.done()
        core.end_close()
        assert (await release).state is ModelState.RELEASED

    async def test_no_wait_does_not_wait_for_its_core(self, bench: Bench) -> None:
        bench.launcher.lingers = True
        await bench.run()
        core = await bench.launcher.fail_restart()
        assert (await bench.engine.release_model(NAME, no_wait=True)).state is ModelState.RELEASED
        assert not core.closed

    async def test_logs_stay_until_their_requests_are_released(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 9}, ended={bench.added().key: FinishReason.MAX_LENGTH})
        await bench.engine.stop_model(NAME)
        await bench.engine.release_model(NAME)
        elements = await bench.unread(accepted.handle)
        assert elements is not None
        assert elements.token_ids == [9]
