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
from unit.engine.bench import NAME, Bench
from unit.engine.clock import settle
from unit.engine.held import PREPARE, Held
from unit.engine.refusals import refused


class TestInstall:
    async def test_reaches_initial_and_shows_what_was_found(self, bench: Bench) -> None:
        view = await bench.engine.install_model(bench.config())
        assert (view.state, view.wanted_state, view.failure, view.progress) == (
            ModelState.INITIAL,
            ModelState.INITIAL,
            None,
            None,
        )
        assert (view.model_name, view.engine, view.state_time) == (NAME, "e1", bench.clock())
        assert view.effective is not None
        assert view.effective.architecture == "LlamaForCausalLM"
        assert (view.effective.vocab_size, view.effective.model_max_length) == (384, 512)
        assert view.effective.generation_defaults.eos_token_id == (2, 0)
        assert view.effective.config.max_batch == 32
        assert bench.launcher.cores == []

    async def test_an_equal_config_again_changes_nothing(self, bench: Bench) -> None:
        await bench.run()
        view = await bench.engine.install_model(bench.config())
        assert view.state is ModelState.RUNNING
        assert len(bench.launcher.cores) == 1

    async def test_another_config_under_the_name_is_refused(self, bench: Bench) -> None:
        await bench.install()
        with pytest.raises(AlreadyExists) as caught:
            await bench.install(max_batch=1)
        assert caught.value.reason == "MODEL_EXISTS"
        assert bench.state is ModelState.INITIAL

    async def test_a_wrong_config_installs_nothing(self, bench: Bench) -> None:
        with pytest.raises(InvalidArgument):
            await bench.install(max_batch=0)
        with pytest.raises(NotFound):
            bench.engine.get_model(NAME)

    async def test_a_model_that_cannot_be_read_is_failed_and_keeps_its_name(self, bench: Bench) -> None:
        with pytest.raises(BadModel):
            await bench.install(model_path=str(bench.model_path / "nowhere"))
        view = bench.engine.get_model(NAME)
        assert view.state is ModelState.FAILED
        assert isinstance(view.failure, BadModel)
        assert "nowhere" in view.failure.message

    async def test_any_config_replaces_a_failed_model(self, bench: Bench) -> None:
        with pytest.raises(InvalidArgument, match="more than the model was made for"):
            await bench.install(max_length=513)
        assert bench.state is ModelState.FAILED
        await bench.install(max_length=512)
        view = bench.engine.get_model(NAME)
        assert (view.state, view.failure) == (ModelState.INITIAL, None)

    async def test_a_defect_is_told_as_one_in_the_call_and_in_the_state(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any) -> None:
            raise ZeroDivisionError("by zero")

        monkeypatch.setattr(PREPARE, broken)
        with pytest.raises(Internal, match="ZeroDivisionError"):
            await bench.install()
        assert isinstance(bench.engine.get_model(NAME).failure, Internal)

    async def test_no_wait_returns_at_once_and_a_repeated_call_joins(self, bench: Bench, held: Held) -> None:
        view = await bench.engine.install_model(bench.config(), no_wait=True)
        assert view.state is ModelState.INSTALLING
        calls = [asyncio.create_task(bench.engine.install_model(bench.config())) for _ in range(3)]
        await settle()
        progress = bench.engine.get_model(NAME).progress
        assert progress is not None
        assert progress.phase is ModelPhase.READING
        assert not any(call.done() for call in calls)
        held.go()
        assert [view.state for view in await asyncio.gather(*calls)] == [ModelState.INITIAL] * 3
        assert held.count == 1

    async def test_those_who_joined_learn_why_it_failed(self, bench: Bench, held: Held) -> None:
        config = bench.config(model_path="/nowhere")
        calls = [asyncio.create_task(bench.engine.install_model(config)) for _ in range(2)]
        await settle()
        held.go()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BadModel, BadModel]

    async def test_a_call_that_is_cut_leaves_the_work_going(self, bench: Bench, held: Held) -> None:
        call = asyncio.create_task(bench.engine.install_model(bench.config()))
        await settle()
        call.cancel()
        await settle()
        assert call.cancelled()
        held.go()
        assert (await bench.engine.install_model(bench.config())).state is ModelState.INITIAL
        assert held.count == 1

    async def test_another_config_is_refused_while_one_is_being_installed(self, bench: Bench, held: Held) -> None:
        await bench.engine.install_model(bench.config(), no_wait=True)
        with pytest.raises(AlreadyExists):
            await bench.install(max_batch=1)
        held.go()
        await bench.install()


class TestStart:
    async def test_reaches_running_and_shows_what_the_core_chose(self, bench: Bench) -> None:
        await bench.install()
        view = await bench.engine.start_model(NAME)
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
        assert view.effective.config.format == bench.engine.get_model(NAME).effective.config.format == "HF"  # type: ignore[union-attr]

    async def test_is_starting_from_the_call_on(self, bench: Bench) -> None:
        """Nothing can come between the call and the state: a stop that follows at once is possible."""
        bench.launcher.ready_at_once = None
        await bench.install()
        view = await bench.engine.start_model(NAME, no_wait=True)
        assert view.state is ModelState.STARTING
        assert (await bench.engine.stop_model(NAME)).state is ModelState.STOPPED

    async def test_repeated_calls_join(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        calls = [asyncio.create_task(bench.engine.start_model(NAME)) for _ in range(3)]
        await settle()
        bench.core.ready()
        assert [view.state for view in await asyncio.gather(*calls)] == [ModelState.RUNNING] * 3
        assert len(bench.launcher.cores) == 1

    async def test_in_its_target_state_it_succeeds(self, bench: Bench) -> None:
        await bench.run()
        assert (await bench.engine.start_model(NAME)).state is ModelState.RUNNING
        assert len(bench.launcher.cores) == 1

    async def test_during_an_install_it_waits(self, bench: Bench, held: Held) -> None:
        await bench.engine.install_model(bench.config(), no_wait=True)
        call = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        view = bench.engine.get_model(NAME)
        assert (view.state, view.wanted_state) == (ModelState.INSTALLING, ModelState.RUNNING)
        held.go()
        assert (await call).state is ModelState.RUNNING

    async def test_during_an_install_that_fails_it_fails_with_its_reason(self, bench: Bench, held: Held) -> None:
        await bench.engine.install_model(bench.config(model_path="/nowhere"), no_wait=True)
        call = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        held.go()
        with pytest.raises(BadModel):
            await call
        assert bench.launcher.cores == []

    async def test_progress_is_shown_until_it_is_done(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        call = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        bench.core.progress(40, 98)
        progress = bench.engine.get_model(NAME).progress
        assert progress is not None
        assert (progress.phase, progress.bytes_done, progress.bytes_total) == (ModelPhase.LOADING, 40, 98)
        bench.core.ready()
        assert (await call).progress is None

    async def test_a_core_that_fails_makes_the_model_fail_with_its_words(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        calls = [asyncio.create_task(bench.engine.start_model(NAME)) for _ in range(2)]
        await settle()
        bench.core.fail("OUT_OF_MEMORY", "max_length 8192 x max_batch 32 needs 11.2 GiB, 6.0 GiB are free: lower one")
        for call in calls:
            with pytest.raises(OutOfMemory, match="lower one"):
                await call
        view = bench.engine.get_model(NAME)
        assert view.state is ModelState.FAILED
        assert isinstance(view.failure, OutOfMemory)
        await settle()
        assert bench.core.closed

    async def test_a_core_that_dies_makes_the_model_fail(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        call = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        bench.core.die("killed by signal 9")
        with pytest.raises(Internal, match="killed by signal 9"):
            await call
        assert bench.state is ModelState.FAILED

    async def test_a_core_that_dies_as_it_gets_ready_never_runs(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        call = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        bench.core.ready()
        bench.core.die()
        with pytest.raises(Internal):
            await call
        assert bench.state is ModelState.FAILED

    async def test_a_core_that_cannot_be_launched_makes_the_model_fail(self, bench: Bench) -> None:
        await bench.install()
        bench.launcher.error = OSError("no more processes")
        with pytest.raises(Internal, match="no more processes"):
            await bench.engine.start_model(NAME)
        assert bench.state is ModelState.FAILED

    async def test_a_failed_model_says_why_it_cannot_be_started(self, bench: Bench) -> None:
        bench.launcher.error = OSError("no more processes")
        await bench.install()
        with pytest.raises(Internal):
            await bench.engine.start_model(NAME)
        error = await refused(bench.engine.start_model(NAME))
        assert (error.reason, error.state) == ("WRONG_STATE", ModelState.FAILED)
        assert "no more processes" in error.message

    async def test_a_call_that_is_cut_leaves_the_work_going(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        call = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        call.cancel()
        await settle()
        assert bench.state is ModelState.STARTING
        bench.core.ready()
        assert (await bench.engine.start_model(NAME)).state is ModelState.RUNNING
        assert len(bench.launcher.cores) == 1
