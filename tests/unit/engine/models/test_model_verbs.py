"""How models are installed and started: states, joins, and what goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from headrace_engine.errors import (
    AlreadyExists,
    BadModel,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfMemory,
)
from headrace_engine.model_types import ModelPhase, ModelState
from support.clocks.clock import settle
from support.engine.held import PREPARE, Held
from support.engine.refusals import refused
from support.engine.rig import NAME, Rig


class TestInstall:
    async def test_reaches_initial_and_shows_what_was_found(self, rig: Rig) -> None:
        view = await rig.engine.install_model(rig.config())
        assert (view.state, view.wanted_state, view.failure, view.progress) == (
            ModelState.INITIAL,
            ModelState.INITIAL,
            None,
            None,
        )
        assert (view.model_name, view.engine, view.state_time) == (NAME, "e1", rig.clock())
        assert view.effective is not None
        assert view.effective.architecture == "LlamaForCausalLM"
        assert (view.effective.vocab_size, view.effective.model_max_length) == (384, 512)
        assert view.effective.generation_defaults.eos_token_id == (2, 0)
        assert view.effective.config.max_batch == 32
        assert rig.launcher.cores == []

    async def test_an_equal_config_again_changes_nothing(self, rig: Rig) -> None:
        await rig.run()
        view = await rig.engine.install_model(rig.config())
        assert view.state is ModelState.RUNNING
        assert len(rig.launcher.cores) == 1

    async def test_another_config_under_the_name_is_refused(self, rig: Rig) -> None:
        await rig.install()
        with pytest.raises(AlreadyExists) as caught:
            await rig.install(max_batch=1)
        assert caught.value.reason == "MODEL_EXISTS"
        assert rig.state is ModelState.INITIAL

    async def test_a_wrong_config_installs_nothing(self, rig: Rig) -> None:
        with pytest.raises(InvalidArgument):
            await rig.install(max_batch=0)
        with pytest.raises(NotFound):
            rig.engine.get_model(NAME)

    async def test_an_unreadable_model_is_failed_and_keeps_its_name(self, rig: Rig) -> None:
        with pytest.raises(BadModel):
            await rig.install(model_path=str(rig.model_path / "nowhere"))
        view = rig.engine.get_model(NAME)
        assert view.state is ModelState.FAILED
        assert isinstance(view.failure, BadModel)
        assert "nowhere" in view.failure.message

    async def test_any_config_replaces_a_failed_model(self, rig: Rig) -> None:
        with pytest.raises(InvalidArgument, match="exceeds the model's maximum"):
            await rig.install(max_length=513)
        assert rig.state is ModelState.FAILED
        await rig.install(max_length=512)
        view = rig.engine.get_model(NAME)
        assert (view.state, view.failure) == (ModelState.INITIAL, None)

    async def test_a_defect_is_told_as_one_in_the_call_and_in_the_state(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any) -> None:
            raise ZeroDivisionError("by zero")

        monkeypatch.setattr(PREPARE, broken)
        with pytest.raises(Internal, match="ZeroDivisionError"):
            await rig.install()
        assert isinstance(rig.engine.get_model(NAME).failure, Internal)

    async def test_no_wait_returns_at_once_and_a_repeated_call_joins(self, rig: Rig, held: Held) -> None:
        view = await rig.engine.install_model(rig.config(), no_wait=True)
        assert view.state is ModelState.INSTALLING
        calls = [asyncio.create_task(rig.engine.install_model(rig.config())) for _ in range(3)]
        await settle()
        progress = rig.engine.get_model(NAME).progress
        assert progress is not None
        assert progress.phase is ModelPhase.READING
        assert not any(call.done() for call in calls)
        held.go()
        assert [view.state for view in await asyncio.gather(*calls)] == [ModelState.INITIAL] * 3
        assert held.count == 1

    async def test_those_who_joined_learn_why_it_failed(self, rig: Rig, held: Held) -> None:
        config = rig.config(model_path="/nowhere")
        calls = [asyncio.create_task(rig.engine.install_model(config)) for _ in range(2)]
        await settle()
        held.go()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BadModel, BadModel]

    async def test_a_call_that_is_cut_leaves_the_work_going(self, rig: Rig, held: Held) -> None:
        call = asyncio.create_task(rig.engine.install_model(rig.config()))
        await settle()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        held.go()
        assert (await rig.engine.install_model(rig.config())).state is ModelState.INITIAL
        assert held.count == 1

    async def test_another_config_is_refused_while_one_is_being_installed(self, rig: Rig, held: Held) -> None:
        await rig.engine.install_model(rig.config(), no_wait=True)
        with pytest.raises(AlreadyExists):
            await rig.install(max_batch=1)
        held.go()
        await rig.install()


class TestStart:
    async def test_reaches_running_and_shows_what_the_core_chose(self, rig: Rig) -> None:
        await rig.install()
        view = await rig.engine.start_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.RUNNING, ModelState.RUNNING)
        assert view.effective is not None
        assert view.effective.devices == ("CPU test",)
        assert (view.effective.weight_bytes, view.effective.workspace_bytes, view.effective.kv_bytes) == (
            1000,
            200,
            3000,
        )
        assert view.effective.kv_tokens == 128 * 16
        assert (view.effective.config.max_length, view.effective.config.num_threads) == (64, 2)
        assert view.effective.config.format == rig.engine.get_model(NAME).effective.config.format == "HF"  # type: ignore[union-attr]

    async def test_is_starting_from_the_call_on(self, rig: Rig) -> None:
        """Nothing can come between the call and the state: a stop that follows at once is possible."""
        rig.launcher.ready_at_once = None
        await rig.install()
        view = await rig.engine.start_model(NAME, no_wait=True)
        assert view.state is ModelState.STARTING
        assert (await rig.engine.stop_model(NAME)).state is ModelState.STOPPED

    async def test_repeated_calls_join(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        calls = [asyncio.create_task(rig.engine.start_model(NAME)) for _ in range(3)]
        await settle()
        rig.core.ready()
        assert [view.state for view in await asyncio.gather(*calls)] == [ModelState.RUNNING] * 3
        assert len(rig.launcher.cores) == 1

    async def test_in_its_target_state_it_succeeds(self, rig: Rig) -> None:
        await rig.run()
        assert (await rig.engine.start_model(NAME)).state is ModelState.RUNNING
        assert len(rig.launcher.cores) == 1

    async def test_during_an_install_it_waits(self, rig: Rig, held: Held) -> None:
        await rig.engine.install_model(rig.config(), no_wait=True)
        call = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        view = rig.engine.get_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.INSTALLING, ModelState.RUNNING)
        held.go()
        assert (await call).state is ModelState.RUNNING

    async def test_during_an_install_that_fails_it_fails_with_its_reason(self, rig: Rig, held: Held) -> None:
        await rig.engine.install_model(rig.config(model_path="/nowhere"), no_wait=True)
        call = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        held.go()
        with pytest.raises(BadModel):
            await call
        assert rig.launcher.cores == []

    async def test_progress_is_shown_until_it_is_done(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        call = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        rig.core.progress(40, 98)
        progress = rig.engine.get_model(NAME).progress
        assert progress is not None
        assert (progress.phase, progress.bytes_done, progress.bytes_total) == (ModelPhase.LOADING, 40, 98)
        rig.core.ready()
        assert (await call).progress is None

    async def test_a_core_that_fails_makes_the_model_fail_with_its_words(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        calls = [asyncio.create_task(rig.engine.start_model(NAME)) for _ in range(2)]
        await settle()
        rig.core.fail("OUT_OF_MEMORY", "max_length 8192 x max_batch 32 needs 11.2 GiB, 6.0 GiB are free: lower one")
        for call in calls:
            with pytest.raises(OutOfMemory, match="lower one"):
                await call
        view = rig.engine.get_model(NAME)
        assert view.state is ModelState.FAILED
        assert isinstance(view.failure, OutOfMemory)
        await settle()
        assert rig.core.closed

    async def test_a_core_that_dies_makes_the_model_fail(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        call = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        rig.core.die("killed by signal 9")
        with pytest.raises(Internal, match="killed by signal 9"):
            await call
        assert rig.state is ModelState.FAILED

    async def test_a_core_that_dies_as_it_gets_ready_never_runs(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        call = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        rig.core.ready()
        rig.core.die()
        with pytest.raises(Internal):
            await call
        assert rig.state is ModelState.FAILED

    async def test_a_core_that_cannot_be_launched_makes_the_model_fail(self, rig: Rig) -> None:
        await rig.install()
        rig.launcher.error = OSError("no more processes")
        with pytest.raises(Internal, match="no more processes"):
            await rig.engine.start_model(NAME)
        assert rig.state is ModelState.FAILED

    async def test_a_failed_model_says_why_it_cannot_be_started(self, rig: Rig) -> None:
        rig.launcher.error = OSError("no more processes")
        await rig.install()
        with pytest.raises(Internal):
            await rig.engine.start_model(NAME)
        error = await refused(rig.engine.start_model(NAME))
        assert (error.reason, error.state) == ("WRONG_STATE", ModelState.FAILED)
        assert "no more processes" in error.message

    async def test_a_call_that_is_cut_leaves_the_work_going(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        call = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        call.cancel()
        await settle()
        assert rig.state is ModelState.STARTING
        rig.core.ready()
        assert (await rig.engine.start_model(NAME)).state is ModelState.RUNNING
        assert len(rig.launcher.cores) == 1
