"""The life cycle of a model: states, verbs, joins, and verbs that meet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from headrace_engine.engine.prepare import prepare
from headrace_engine.errors import (
    AlreadyExists,
    BadModel,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfMemory,
    Unavailable,
)
from headrace_engine.model_types import ModelPhase, ModelState, ModelView
from headrace_engine.result_types import FinishReason, GenerateStatus
from unit.engine.bench import NAME, Bench
from unit.engine.clock import settle

PREPARE = "headrace_engine.engine.model.prepare"


class Held:
    """Holds what installs read until the test lets it go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go = threading.Event()
        self.count = 0
        monkeypatch.setattr(PREPARE, self)

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        assert self._go.wait(60)
        return prepare(*args)

    def go(self) -> None:
        self._go.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Any:
    held = Held(monkeypatch)
    yield held
    held.go()


async def refused(call: Any) -> FailedPrecondition:
    with pytest.raises(FailedPrecondition) as caught:
        await call
    return caught.value


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
            await bench.engine.release_model(NAME)
        assert caught.value.reason == "UNKNOWN_MODEL"
        await bench.install(max_batch=1)
        assert bench.state is ModelState.INITIAL

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


ALLOWED = {
    "start_model": {
        ModelState.INSTALLING,
        ModelState.INITIAL,
        ModelState.STARTING,
        ModelState.RUNNING,
        ModelState.STOPPED,
    },
    "stop_model": {ModelState.STARTING, ModelState.RUNNING, ModelState.STOPPING, ModelState.STOPPED},
    "release_model": {ModelState.INSTALLING, ModelState.INITIAL, ModelState.STOPPED, ModelState.FAILED},
}
STATES = [state for state in ModelState if state is not ModelState.RELEASED]


async def bring(bench: Bench, held: Held, state: ModelState) -> None:
    """Bring the model into a state, and keep it there."""
    bench.launcher.lingers = True
    await bench.engine.install_model(bench.config(), no_wait=True)
    await settle()
    if state is ModelState.INSTALLING:
        return
    held.go()
    await bench.engine.install_model(bench.config())
    if state is ModelState.INITIAL:
        return
    if state is ModelState.STARTING:
        bench.launcher.ready_at_once = None
    await bench.engine.start_model(NAME, no_wait=state is ModelState.STARTING)
    await settle()
    if state is ModelState.FAILED:
        await bench.launcher.fail_restart()
    if state in (ModelState.STOPPING, ModelState.STOPPED):
        await bench.engine.stop_model(NAME, no_wait=True)
        await settle()
    if state is ModelState.STOPPED:
        bench.core.end_close()
        await bench.engine.stop_model(NAME)
    assert bench.state is state


class TestTable:
    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("verb", ALLOWED)
    async def test_which_verb_is_possible_from_which_state(
        self, bench: Bench, held: Held, verb: str, state: ModelState
    ) -> None:
        await bring(bench, held, state)
        call = getattr(bench.engine, verb)
        if state in ALLOWED[verb]:
            await call(NAME, no_wait=True)
            return
        error = await refused(call(NAME, no_wait=True))
        assert (error.reason, error.state) == ("WRONG_STATE", state)
        assert f"{NAME!r} is {state}" in error.message
        assert error.metadata == {"model_name": NAME}
        assert bench.state is state

    @pytest.mark.parametrize("verb", ALLOWED)
    async def test_an_unknown_name_is_not_found(self, bench: Bench, verb: str) -> None:
        await bench.install("other")
        with pytest.raises(NotFound, match="installed: other") as caught:
            await getattr(bench.engine, verb)(NAME)
        assert caught.value.reason == "UNKNOWN_MODEL"

    @pytest.mark.parametrize("state", [state for state in STATES if state is not ModelState.RUNNING])
    async def test_only_a_running_model_takes_requests(self, bench: Bench, held: Held, state: ModelState) -> None:
        await bring(bench, held, state)
        error = await refused(bench.start())
        assert (error.reason, error.state) == ("MODEL_NOT_RUNNING", state)
        assert error.metadata == {"model_name": NAME}

    @pytest.mark.parametrize(
        ("state", "advice"),
        [
            (ModelState.INSTALLING, "wait until it is INITIAL (WatchModel), then start it (StartModel)"),
            (ModelState.INITIAL, "start it first (StartModel)"),
            (ModelState.STOPPED, "start it first (StartModel)"),
            (ModelState.STARTING, "wait until it is RUNNING (WatchModel)"),
            (
                ModelState.STOPPING,
                "it takes no more requests. Wait until it is STOPPED (WatchModel), then start it (StartModel)",
            ),
            (
                ModelState.FAILED,
                "lower one of them. Install it again, with another config where that helps (InstallModel), "
                "then start it (StartModel)",
            ),
        ],
    )
    async def test_the_refusal_says_what_to_do(self, bench: Bench, held: Held, state: ModelState, advice: str) -> None:
        await bring(bench, held, state)
        assert (await refused(bench.start())).message == f"model {NAME!r} is {state}: {advice}"

    async def test_a_model_that_will_be_started_is_waited_for(self, bench: Bench, held: Held) -> None:
        await bring(bench, held, ModelState.INSTALLING)
        await bench.engine.start_model(NAME, no_wait=True)
        said = (await refused(bench.start())).message
        assert said == f"model {NAME!r} is INSTALLING: wait until it is RUNNING (WatchModel)"

    @pytest.mark.parametrize(
        ("state", "advice"),
        [
            (ModelState.STOPPING, "wait until it is STOPPED (WatchModel)"),
            (ModelState.FAILED, "lower one of them. Install it again, with another config where that helps"),
        ],
    )
    async def test_a_start_that_is_impossible_says_what_to_do(
        self, bench: Bench, held: Held, state: ModelState, advice: str
    ) -> None:
        await bring(bench, held, state)
        said = (await refused(bench.engine.start_model(NAME))).message
        assert said.startswith(f"StartModel: model {NAME!r} is {state}: {advice}")
        assert said.endswith("The call is possible from INSTALLING, INITIAL, STARTING, STOPPED")


class TestMeetings:
    async def test_a_stop_ends_a_start_and_those_who_wait_for_it_are_told(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        starts = [asyncio.create_task(bench.engine.start_model(NAME)) for _ in range(2)]
        await settle()
        view = await bench.engine.stop_model(NAME)
        assert view.state is ModelState.STOPPED
        assert bench.core.closed
        for start in starts:
            assert (await refused(start)).reason == "WRONG_STATE"

    async def test_a_core_that_gets_ready_as_it_is_stopped_does_not_run(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        start = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        bench.core.ready()
        assert (await bench.engine.stop_model(NAME)).state is ModelState.STOPPED
        await refused(start)
        assert bench.state is ModelState.STOPPED

    async def test_a_start_after_a_stop_that_ended_a_start_works(self, bench: Bench) -> None:
        bench.launcher.ready_at_once = None
        await bench.install()
        await bench.engine.start_model(NAME, no_wait=True)
        await settle()
        await bench.engine.stop_model(NAME)
        start = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        bench.core.ready()
        assert (await start).state is ModelState.RUNNING
        assert len(bench.launcher.cores) == 2

    async def test_a_start_during_a_stop_is_refused(self, bench: Bench) -> None:
        bench.launcher.lingers = True
        core = await bench.run()
        stop = asyncio.create_task(bench.engine.stop_model(NAME))
        await settle()
        await refused(bench.engine.start_model(NAME))
        core.end_close()
        assert (await stop).state is ModelState.STOPPED

    async def test_verbs_of_one_model_do_not_hold_up_those_of_another(self, bench: Bench, held: Held) -> None:
        await bench.engine.install_model(bench.config(), no_wait=True)
        await bench.engine.install_model(bench.config("other"), no_wait=True)
        await settle()
        await bench.engine.release_model("other")
        assert [view.model_name for view in bench.engine.list_models()] == [NAME]

    async def test_a_new_model_in_the_place_of_a_failed_one_starts_while_its_core_is_leaving(
        self, bench: Bench
    ) -> None:
        bench.launcher.lingers = True
        await bench.run()
        old = await bench.launcher.fail_restart()
        await bench.run(max_batch=1)
        assert bench.state is ModelState.RUNNING
        assert old.closing
        close = asyncio.create_task(bench.engine.close())
        bench.core.end_close()
        await settle()
        assert not close.done()
        old.end_close()
        await close

    @pytest.mark.parametrize("verb", ["install", "start", "stop"])
    async def test_the_end_of_the_engine_ends_a_verb_in_progress(self, bench: Bench, held: Held, verb: str) -> None:
        states = {"install": ModelState.INSTALLING, "start": ModelState.STARTING, "stop": ModelState.STOPPING}
        await bring(bench, held, states[verb])
        close = asyncio.create_task(bench.engine.close())
        await settle()
        assert close.done() is (verb == "install")
        for core in bench.launcher.cores:
            core.end_close()
        await close
        assert all(core.closed for core in bench.launcher.cores)


class TestDraining:
    async def test_an_engine_that_goes_away_installs_and_starts_nothing(self, bench: Bench) -> None:
        await bench.install()
        await bench.engine.drain(0)
        for call in (bench.engine.install_model(bench.config("other")), bench.engine.start_model(NAME)):
            with pytest.raises(Unavailable) as caught:
                await call
            assert caught.value.reason == "DRAINING"
            assert caught.value.retry_after is not None


class TestWatching:
    async def test_every_state_is_seen_up_to_the_release(self, bench: Bench) -> None:
        await bench.install()
        seen: list[ModelView] = []

        async def watch() -> None:
            seen.extend([view async for view in bench.engine.watch_model(NAME)])

        watching = asyncio.create_task(watch())
        await settle()
        await bench.engine.start_model(NAME)
        await bench.engine.stop_model(NAME)
        await bench.engine.release_model(NAME)
        await watching
        assert [view.state for view in seen] == [
            ModelState.INITIAL,
            ModelState.STARTING,
            ModelState.RUNNING,
            ModelState.STOPPING,
            ModelState.STOPPED,
            ModelState.RELEASED,
        ]
        assert all(view.effective is None for view in seen)

    async def test_an_unknown_model_is_told_at_the_call(self, bench: Bench) -> None:
        with pytest.raises(NotFound):
            bench.engine.watch_model(NAME)

    async def test_a_model_that_is_released_before_the_first_view_ends_the_stream(self, bench: Bench) -> None:
        await bench.install()
        views = bench.engine.watch_model(NAME)
        await bench.engine.release_model(NAME)
        assert [view async for view in views] == []
