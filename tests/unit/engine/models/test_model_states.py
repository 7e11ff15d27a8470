"""Which verb is possible from which state, verbs that meet, and who watches."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.errors import (
    FailedPrecondition,
    HeadraceError,
    NotFound,
    Unavailable,
)
from headrace_engine.model_types import ModelState, ModelView
from support.clocks.clock import settle
from support.engine.held import Held
from support.engine.refusals import refused
from support.engine.rig import NAME, Rig

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


async def bring(rig: Rig, held: Held, state: ModelState) -> None:
    """Bring the model into a state, and keep it there."""
    rig.launcher.lingers = True
    await rig.engine.install_model(rig.config(), no_wait=True)
    await settle()
    if state is ModelState.INSTALLING:
        return
    held.go()
    await rig.engine.install_model(rig.config())
    if state is ModelState.INITIAL:
        return
    if state is ModelState.STARTING:
        rig.launcher.ready_at_once = None
    await rig.engine.start_model(NAME, no_wait=state is ModelState.STARTING)
    await settle()
    if state is ModelState.FAILED:
        await rig.launcher.fail_restart()
    if state in (ModelState.STOPPING, ModelState.STOPPED):
        await rig.engine.stop_model(NAME, no_wait=True)
        await settle()
    if state is ModelState.STOPPED:
        rig.core.end_close()
        await rig.engine.stop_model(NAME)
    assert rig.state is state


class TestTable:
    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("verb", ALLOWED)
    async def test_which_verb_is_possible_from_which_state(
        self, rig: Rig, held: Held, verb: str, state: ModelState
    ) -> None:
        await bring(rig, held, state)
        call = getattr(rig.engine, verb)
        if state in ALLOWED[verb]:
            await call(NAME, no_wait=True)
            return
        error = await refused(call(NAME, no_wait=True))
        assert (error.reason, error.state) == ("WRONG_STATE", state)
        assert f'"{NAME}" is {state}' in error.message
        assert ("stop it first (StopModel)" in error.message) == (state in (ModelState.STARTING, ModelState.RUNNING))
        assert error.metadata == {"model_name": NAME}
        assert rig.state is state

    @pytest.mark.parametrize("verb", ALLOWED)
    async def test_an_unknown_name_is_not_found(self, rig: Rig, verb: str) -> None:
        await rig.install("other")
        with pytest.raises(NotFound, match="installed: other") as caught:
            await getattr(rig.engine, verb)(NAME)
        assert caught.value.reason == "UNKNOWN_MODEL"

    @pytest.mark.parametrize("state", [state for state in STATES if state is not ModelState.RUNNING])
    async def test_only_a_running_model_takes_requests(self, rig: Rig, held: Held, state: ModelState) -> None:
        await bring(rig, held, state)
        with pytest.raises(HeadraceError) as caught:
            await rig.start()
        error = caught.value
        if state is ModelState.STARTING:
            assert (error.reason, error.retry_after) == ("MODEL_STARTING", 1.0)
        else:
            assert isinstance(error, FailedPrecondition)
            assert (error.reason, error.state) == ("MODEL_NOT_RUNNING", state)
        assert error.metadata == {"model_name": NAME}

    @pytest.mark.parametrize(
        ("state", "advice"),
        [
            (ModelState.INSTALLING, "wait until it is INITIAL (WatchModel), then start it (StartModel)"),
            (ModelState.INITIAL, "start it first (StartModel)"),
            (ModelState.STOPPED, "start it first (StartModel)"),
            (ModelState.STARTING, "it takes requests once it is RUNNING. Try again, or watch it (WatchModel)"),
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
    async def test_the_refusal_says_what_to_do(self, rig: Rig, held: Held, state: ModelState, advice: str) -> None:
        await bring(rig, held, state)
        with pytest.raises(HeadraceError) as caught:
            await rig.start()
        assert caught.value.message == f'model "{NAME}" is {state}: {advice}'

    async def test_b4_a_model_that_will_be_started_is_an_outage(self, rig: Rig, held: Held) -> None:
        await bring(rig, held, ModelState.INSTALLING)
        await rig.engine.start_model(NAME, no_wait=True)
        way = "it takes requests once it is RUNNING. Try again, or watch it (WatchModel)"
        for call in (rig.start(), rig.engine.tokenize(NAME, "Hello")):
            with pytest.raises(Unavailable) as caught:
                await call
            assert (caught.value.reason, caught.value.retry_after) == ("MODEL_STARTING", 1.0)
            assert caught.value.message == f'model "{NAME}" is INSTALLING: {way}'

    @pytest.mark.parametrize(
        ("state", "advice"),
        [
            (ModelState.STOPPING, "wait until it is STOPPED (WatchModel)"),
            (ModelState.FAILED, "lower one of them. Install it again, with another config where that helps"),
        ],
    )
    async def test_a_start_that_is_impossible_says_what_to_do(
        self, rig: Rig, held: Held, state: ModelState, advice: str
    ) -> None:
        await bring(rig, held, state)
        text = (await refused(rig.engine.start_model(NAME))).message
        assert text.startswith(f'StartModel: model "{NAME}" is {state}: {advice}')
        assert ("The call is possible from INSTALLING, INITIAL" in text) is (state is not ModelState.FAILED)


class TestMeetings:
    async def test_a_stop_ends_a_start_and_those_who_wait_for_it_are_told(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        starts = [asyncio.create_task(rig.engine.start_model(NAME)) for _ in range(2)]
        await settle()
        view = await rig.engine.stop_model(NAME)
        assert view.state is ModelState.STOPPED
        assert rig.core.closed
        for start in starts:
            assert (await refused(start)).reason == "WRONG_STATE"

    async def test_a_core_that_gets_ready_as_it_is_stopped_does_not_run(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        start = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        rig.core.ready()
        assert (await rig.engine.stop_model(NAME)).state is ModelState.STOPPED
        await refused(start)
        assert rig.state is ModelState.STOPPED

    async def test_a_start_after_a_stop_that_ended_a_start_works(self, rig: Rig) -> None:
        rig.launcher.ready_at_once = None
        await rig.install()
        await rig.engine.start_model(NAME, no_wait=True)
        await settle()
        await rig.engine.stop_model(NAME)
        start = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        rig.core.ready()
        assert (await start).state is ModelState.RUNNING
        assert len(rig.launcher.cores) == 2

    async def test_a_start_during_a_stop_is_refused(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        core = await rig.run()
        stop = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        await refused(rig.engine.start_model(NAME))
        core.end_close()
        assert (await stop).state is ModelState.STOPPED

    async def test_verbs_of_one_model_do_not_hold_up_those_of_another(self, rig: Rig, held: Held) -> None:
        await rig.engine.install_model(rig.config(), no_wait=True)
        await rig.engine.install_model(rig.config("other"), no_wait=True)
        await settle()
        await rig.engine.release_model("other")
        assert [view.model_name for view in rig.engine.list_models()] == [NAME]

    async def test_a_new_model_starts_while_a_failed_ones_core_leaves(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        await rig.run()
        old = await rig.launcher.fail_restart()
        await rig.run(max_batch=1)
        assert rig.state is ModelState.RUNNING
        assert old.closing
        close = asyncio.create_task(rig.engine.close())
        rig.core.end_close()
        await settle()
        assert not close.done()
        old.end_close()
        await close

    @pytest.mark.parametrize("verb", ["install", "start", "stop"])
    async def test_the_end_of_the_engine_ends_a_verb_in_progress(self, rig: Rig, held: Held, verb: str) -> None:
        states = {"install": ModelState.INSTALLING, "start": ModelState.STARTING, "stop": ModelState.STOPPING}
        await bring(rig, held, states[verb])
        close = asyncio.create_task(rig.engine.close())
        await settle()
        assert close.done() is (verb == "install")
        for core in rig.launcher.cores:
            core.end_close()
        await close
        assert all(core.closed for core in rig.launcher.cores)


class TestDraining:
    async def test_an_engine_that_goes_away_installs_and_starts_nothing(self, rig: Rig) -> None:
        await rig.install()
        await rig.engine.drain(0)
        for call in (rig.engine.install_model(rig.config("other")), rig.engine.start_model(NAME)):
            with pytest.raises(Unavailable) as caught:
                await call
            assert caught.value.reason == "DRAINING"
            assert caught.value.retry_after is not None


class TestWatching:
    async def test_every_state_is_seen_up_to_the_release(self, rig: Rig) -> None:
        await rig.install()
        seen: list[ModelView] = []

        async def watch() -> None:
            seen.extend([view async for view in rig.engine.watch_model(NAME)])

        watching = asyncio.create_task(watch())
        await settle()
        await rig.engine.start_model(NAME)
        await rig.engine.stop_model(NAME)
        await rig.engine.release_model(NAME)
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

    async def test_an_unknown_model_is_told_at_the_call(self, rig: Rig) -> None:
        with pytest.raises(NotFound):
            rig.engine.watch_model(NAME)

    async def test_a_model_released_before_the_first_view_ends_the_stream(self, rig: Rig) -> None:
        await rig.install()
        views = rig.engine.watch_model(NAME)
        await rig.engine.release_model(NAME)
        assert [view async for view in views] == []
