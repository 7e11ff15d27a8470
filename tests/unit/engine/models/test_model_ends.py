"""How models are stopped and released."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.engine.models.releases import RELEASE_MEMORY
from headrace_engine.errors import NotFound
from headrace_engine.model_types import ModelPhase, ModelState
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.engine.held import Held
from support.engine.refusals import not_found, refused
from support.engine.rig import NAME, Rig


class TestStop:
    async def test_frees_what_the_model_computes_with(self, rig: Rig) -> None:
        core = await rig.run()
        view = await rig.engine.stop_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.STOPPED, ModelState.STOPPED)
        assert core.closed
        assert view.effective is not None
        assert (view.effective.kv_bytes, view.effective.kv_tokens, view.effective.devices) == (0, 0, ())

    async def test_in_its_target_state_it_succeeds(self, rig: Rig) -> None:
        await rig.run()
        for _ in range(2):
            assert (await rig.engine.stop_model(NAME)).state is ModelState.STOPPED

    async def test_running_requests_may_end(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        call = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        view = rig.engine.get_model(NAME)
        assert view.state is ModelState.STOPPING
        assert view.progress is not None
        assert view.progress.phase is ModelPhase.DRAINING
        assert not core.closing
        core.step({rig.added().key: 9}, ended={rig.added().key: FinishReason.MAX_LENGTH})
        assert (await call).state is ModelState.STOPPED
        end = (await rig.sequence(accepted.handle)).end
        assert end is not None
        assert end.finish_reason is FinishReason.MAX_LENGTH

    async def test_after_the_drain_limit_they_are_ended_as_drained(self, rig: Rig) -> None:
        core = await rig.run(drain_limit=0.0)
        accepted = await rig.start()
        key = rig.added().key
        core.step({key: 9})
        await rig.engine.stop_model(NAME)
        sequence = await rig.sequence(accepted.handle)
        assert sequence.end is not None
        assert (sequence.end.finish_reason, sequence.status) == (FinishReason.DRAINED, GenerateStatus.INTERRUPTED)
        assert sequence.generated_length == 1
        assert core.ended == [key]

    async def test_no_new_request_is_taken_from_the_call_on(self, rig: Rig) -> None:
        await rig.run()
        await rig.start()
        await rig.engine.stop_model(NAME, no_wait=True)
        error = await refused(rig.start())
        assert (error.reason, error.state) == ("MODEL_NOT_RUNNING", ModelState.STOPPING)

    async def test_repeated_calls_join(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        core = await rig.run()
        calls = [asyncio.create_task(rig.engine.stop_model(NAME)) for _ in range(3)]
        await settle()
        progress = rig.engine.get_model(NAME).progress
        assert progress is not None
        assert progress.phase is ModelPhase.FREEING
        core.end_close()
        assert [view.state for view in await asyncio.gather(*calls)] == [ModelState.STOPPED] * 3

    async def test_a_call_that_is_cut_leaves_the_work_going(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        core = await rig.run()
        call = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        call.cancel()
        await settle()
        core.end_close()
        await rig.engine.stop_model(NAME)
        assert rig.state is ModelState.STOPPED

    async def test_a_stopped_model_can_be_started_again(self, rig: Rig) -> None:
        first = await rig.run()
        await rig.engine.stop_model(NAME)
        await rig.engine.start_model(NAME)
        assert rig.core is not first
        assert rig.state is ModelState.RUNNING
        await rig.start()
        assert len(rig.core.added) == 1


class TestRelease:
    async def test_frees_the_name(self, rig: Rig) -> None:
        await rig.install()
        view = await rig.engine.release_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.RELEASED, ModelState.RELEASED)
        with pytest.raises(NotFound) as caught:
            rig.engine.get_model(NAME)
        assert caught.value.reason == "UNKNOWN_MODEL"
        await rig.install(max_batch=1)
        assert rig.state is ModelState.INITIAL

    @pytest.mark.parametrize("lingers", [True, False])
    async def test_of_several_at_once_all_succeed_when_the_core_is_gone(self, rig: Rig, lingers: bool) -> None:
        rig.launcher.lingers = lingers
        await rig.run()
        core = await rig.launcher.fail_restart()
        releases = [asyncio.create_task(rig.engine.release_model(NAME)) for _ in range(4)]
        if lingers:
            await settle()
            assert not any(release.done() for release in releases)
            core.end_close()
        assert {(await release).state for release in releases} == {ModelState.RELEASED}

    async def test_repeated_it_succeeds_for_ten_minutes(self, rig: Rig) -> None:
        await rig.install()
        await rig.engine.release_model(NAME)
        rig.clock.advance(RELEASE_MEMORY)
        assert (await rig.engine.release_model(NAME)).state is ModelState.RELEASED
        rig.clock.advance(1)
        assert (await not_found(rig.engine.release_model(NAME))).reason == "UNKNOWN_MODEL"

    async def test_of_a_name_that_is_taken_again_it_is_a_new_one(self, rig: Rig) -> None:
        for _ in range(2):
            await rig.run()
            assert (await refused(rig.engine.release_model(NAME))).state is ModelState.RUNNING
            await rig.engine.stop_model(NAME)
            await rig.engine.release_model(NAME)
        assert rig.engine.list_models() == []

    async def test_during_an_install_it_ends_it_and_waiters_learn_of_it(self, rig: Rig, held: Held) -> None:
        install = asyncio.create_task(rig.engine.install_model(rig.config()))
        await settle()
        start = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        assert (await rig.engine.release_model(NAME)).state is ModelState.RELEASED
        for call in (install, start):
            error = await refused(call)
            assert (error.reason, error.state) == ("WRONG_STATE", ModelState.RELEASED)
        held.go()
        await settle()
        with pytest.raises(NotFound):
            rig.engine.get_model(NAME)

    async def test_a_released_installs_reading_does_not_reach_the_next(self, rig: Rig, held: Held) -> None:
        await rig.engine.install_model(rig.config(max_batch=1), no_wait=True)
        await settle()
        await rig.engine.release_model(NAME)
        held.go()
        await rig.install(max_batch=2)
        effective = rig.engine.get_model(NAME).effective
        assert effective is not None
        assert effective.config.max_batch == 2

    async def test_a_failed_model_is_released_when_its_core_is_gone(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        await rig.run()
        core = await rig.launcher.fail_restart()
        assert rig.state is ModelState.FAILED
        release = asyncio.create_task(rig.engine.release_model(NAME))
        await settle()
        assert not release.done()
        core.end_close()
        assert (await release).state is ModelState.RELEASED

    async def test_no_wait_does_not_wait_for_its_core(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        await rig.run()
        core = await rig.launcher.fail_restart()
        assert (await rig.engine.release_model(NAME, no_wait=True)).state is ModelState.RELEASED
        assert not core.closed

    async def test_logs_stay_until_their_requests_are_released(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 9}, ended={rig.added().key: FinishReason.MAX_LENGTH})
        await rig.engine.stop_model(NAME)
        await rig.engine.release_model(NAME)
        elements = await rig.unread(accepted.handle)
        assert elements is not None
        assert elements.token_ids == [9]
