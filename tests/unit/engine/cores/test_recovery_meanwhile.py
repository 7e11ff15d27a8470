"""While a core is being replaced: what is refused, what goes on, and what is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from headrace_engine.errors import NotFound, Unavailable
from headrace_engine.ipc.messages import CoreFailed
from headrace_engine.model_types import ModelPhase, ModelState
from headrace_engine.result_types import FinishReason, GenerateStatus
from headrace_engine.stat_types import CoreStat, Counters
from support.clocks.clock import settle
from support.engine.restarts import by_prompt, command, ended, ids, lose, loss, prove, refused, rest, started
from support.engine.rig import NAME, Rig
from support.scripted.core import READY, ScriptedCore


class TestMeanwhile:
    @pytest.fixture
    async def core(self, rig: Rig) -> ScriptedCore:
        """The core of a model whose first core ended in a step of requests 1 and 2, while 3 waited."""
        core = await rig.run()
        self.requests = await started(rig, 3)
        one, two, _ = (command.key for command in core.added)
        core.step({one: 41, two: 41})
        rig.launcher.ready_at_once = None
        return await lose(rig)

    async def test_starts_are_refused_with_a_time_to_come_back(self, rig: Rig, core: ScriptedCore) -> None:
        for _ in range(2):  # While it warms up, and while suspects are tried.
            error = await refused(rig)
            assert isinstance(error, Unavailable)
            assert (error.reason, error.retry_after, error.metadata) == ("CORE_RESTARTING", 1.0, {"model_name": NAME})
            core.ready()
            await settle()
        await prove(core, 1)
        await prove(core, 2)
        await rig.start()

    async def test_the_model_is_running_and_does_not_serve(self, rig: Rig, core: ScriptedCore) -> None:
        (view,) = rig.engine.list_models()
        assert (view.state, view.serving, view.core_epoch) == (ModelState.RUNNING, False, 2)
        assert view.core_loss is not None
        assert view.core_loss.epoch == 1
        assert (await rig.engine.start_model(NAME)).state is ModelState.RUNNING
        core.ready()
        await settle()
        await prove(core, 1)
        assert not rig.engine.list_models()[0].serving
        await prove(core, 2)
        assert rig.engine.list_models()[0].serving

    async def test_there_is_progress_until_it_serves_again(self, rig: Rig, core: ScriptedCore) -> None:
        """The wire tells by it alone that a model that is RUNNING takes no requests."""
        views = [rig.engine.get_model(NAME)]
        core.ready()
        await settle()
        views.append(rig.engine.get_model(NAME))
        await prove(core, 1)
        views.append(rig.engine.get_model(NAME))
        assert [(view.serving, view.progress is None) for view in views] == [(False, False)] * 3
        await prove(core, 2)
        assert rig.engine.get_model(NAME).progress is None

    async def test_a_request_stopped_before_the_new_core_is_not_resent(self, rig: Rig, core: ScriptedCore) -> None:
        (view,) = await rig.engine.stop_request(self.requests[0].handle, "")
        assert view.end is not None
        assert view.end.finish_reason is FinishReason.STOPPED
        await rig.engine.release_request(self.requests[2].handle, "")
        core.ready()
        await settle()
        assert by_prompt(core) == [2]
        await prove(core, 2)
        assert by_prompt(core) == [2]
        assert loss(rig) is None

    @pytest.mark.parametrize("verb", ["stop", "release"])
    async def test_a_suspect_that_is_stopped_in_its_trial_makes_way(
        self, rig: Rig, core: ScriptedCore, verb: str
    ) -> None:
        core.ready()
        await settle()
        call = rig.engine.stop_request if verb == "stop" else rig.engine.release_request
        await call(self.requests[0].handle, "")
        await settle()
        assert core.ended == [core.added[0].key]
        assert by_prompt(core) == [1, 2]

    async def test_a_request_that_stepped_aside_can_be_stopped(self, rig: Rig, core: ScriptedCore) -> None:
        core.ready()
        await settle()
        await prove(core, 1)
        (view,) = await rig.engine.stop_request(self.requests[0].handle, "")
        assert view.generated_length == 3
        await prove(core, 2)
        assert by_prompt(core) == [1, 2, 3]

    async def test_sync_waits_for_the_new_core_s_answers(self, rig: Rig, core: ScriptedCore) -> None:
        sync = asyncio.create_task(rig.engine.sync_request(handle=self.requests[0].handle))
        core.ready()
        await settle()
        assert not sync.done()
        core.step({core.added[0].key: 42}, ended={core.added[0].key: FinishReason.EOS})
        (view,) = await sync
        assert view.sequences[0].generated_length == 2

    async def test_a_stop_lets_the_restart_go_on_within_the_drain_limit(self, rig: Rig, core: ScriptedCore) -> None:
        stop = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        core.ready()
        await settle()
        await prove(core, 1)
        await prove(core, 2)
        progress = rig.engine.get_model(NAME).progress
        assert progress is not None
        assert progress.phase is ModelPhase.DRAINING
        keys = {number: command(core, number).key for number in (1, 2, 3)}
        core.step(dict.fromkeys(keys.values(), 50), ended=dict.fromkeys(keys.values(), FinishReason.MAX_LENGTH))
        assert (await stop).state is ModelState.STOPPED
        assert [(await ended(rig, each)).generated_length for each in self.requests] == [4, 4, 1]

    async def test_a_stop_with_nothing_running_waits_for_no_core(self, rig: Rig, core: ScriptedCore) -> None:
        for request in self.requests:
            await rig.engine.stop_request(request.handle, "")
        view = await rig.engine.stop_model(NAME)
        assert (view.state, view.core_loss) == (ModelState.STOPPED, None)
        assert core.closed
        rig.launcher.ready_at_once = READY
        await rig.engine.start_model(NAME)
        await rig.start()
        assert len(rig.core.added) == 1

    async def test_the_end_of_the_engine_ends_the_restart(self, rig: Rig, core: ScriptedCore) -> None:
        await rig.engine.drain(0)
        assert [(await ended(rig, each)).status for each in self.requests] == [GenerateStatus.INTERRUPTED] * 3
        await rig.engine.close()
        assert core.closed
        assert len(rig.launcher.cores) == 2

    async def test_a_release_of_all_requests_leaves_a_core_that_serves(self, rig: Rig, core: ScriptedCore) -> None:
        for request in self.requests:
            await rig.engine.release_request(request.handle, "")
        core.ready()
        await settle()
        assert (core.added, loss(rig)) == ([], None)
        await rig.start()
        with pytest.raises(NotFound):
            await rig.sequence(self.requests[0].handle)


class TestStopping:
    async def test_a_core_that_dies_while_requests_drain_is_replaced(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41})
        stop = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        new = await lose(rig)
        assert rig.state is ModelState.STOPPING
        new.step({rig.added().key: 42}, ended={rig.added().key: FinishReason.EOS})
        assert (await stop).state is ModelState.STOPPED
        assert (await ended(rig, accepted)).status is GenerateStatus.FINISHED

    async def test_where_that_fails_the_requests_end_and_the_stop_goes_on(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        stop = asyncio.create_task(rig.engine.stop_model(NAME))
        await settle()
        rig.launcher.ready_at_once = None
        (await lose(rig)).fail("OUT_OF_MEMORY", "lower one of them")
        assert (await stop).state is ModelState.STOPPED
        assert (await ended(rig, accepted)).status is GenerateStatus.INTERNAL_ERROR

    async def test_after_the_drain_limit_the_restart_is_given_up(self, rig: Rig) -> None:
        await rig.run(drain_limit=0.0)
        accepted = await rig.start()
        rig.launcher.ready_at_once = None
        core = await lose(rig)
        assert (await rig.engine.stop_model(NAME)).state is ModelState.STOPPED
        end = (await ended(rig, accepted)).end
        assert end is not None
        assert end.finish_reason is FinishReason.DRAINED
        assert core.closed
        assert len(rig.launcher.cores) == 2


class TestHungCore:
    async def test_a_core_that_answers_nothing_is_killed_and_replaced(self, rig: Rig) -> None:
        rig.new_engine(core_ping_limit=0.0)
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41})
        await rest()
        assert (core.killed, core.closed) == (False, False)
        core.answers = False
        await rest()
        assert (core.killed, core.closed) == (True, True)
        new = rig.core
        assert new is not core
        assert new.added[0].generated == (41,)
        await prove(new, 5)
        assert await ids(rig, accepted) == [41, 90, 91]
        assert rig.engine.get_model(NAME).core_epoch == 2

    async def test_a_core_that_loads_is_not_asked(self, rig: Rig) -> None:
        rig.new_engine(core_ping_limit=0.0)
        rig.launcher.ready_at_once = None
        await rig.install()
        start = asyncio.create_task(rig.engine.start_model(NAME))
        await settle()
        rig.core.answers = False
        await rest()
        assert not rig.core.killed
        rig.core.answers = True
        rig.core.ready()
        await start


def counted(generated: int, prefilled: int) -> CoreStat:
    return CoreStat(counters=Counters(generated_tokens=generated, prefilled_tokens=prefilled))


class TestFacts:
    async def test_statistics_go_on(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        arrival = rig.clock()
        rig.clock.advance(1)
        key = rig.added().key
        core.step({key: 41}, scheduled={key: 2}, stat=counted(1, 3))
        rig.clock.advance(5)
        new = await lose(rig)
        again = new.added[0].key
        new.step({again: 42}, scheduled={again: 0}, stat=counted(1, 4))
        new.step(ended={again: FinishReason.EOS}, stat=counted(1, 4))
        stat = (await ended(rig, accepted)).stat
        assert (stat.arrival_time, stat.scheduled_time, stat.first_token_time) == (arrival, arrival + 1, arrival + 1)
        assert (stat.context_cached_length, stat.preemptions, stat.generated_token_length) == (2, 0, 2)
        (engine,) = rig.engine.engine_stats(NAME)
        assert (engine.counters.generated_tokens, engine.counters.prefilled_tokens, engine.core_epoch) == (2, 7, 2)

    async def test_all_unended_requests_wait_for_the_new_core(self, rig: Rig) -> None:
        core = await rig.run()
        await started(rig, 2)
        one, two = (command.key for command in core.added)
        core.step({one: 41, two: 41}, scheduled={one: 0, two: 0})
        new = await lose(rig)
        (stat,) = rig.engine.engine_stats(NAME)
        assert (stat.running, stat.waiting) == (0, 2)
        new.step({new.added[0].key: 42}, scheduled={new.added[0].key: 0})
        (stat,) = rig.engine.engine_stats(NAME)
        assert (stat.running, stat.waiting) == (1, 1)

    async def test_the_core_s_own_words_come_before_the_news_of_its_death(self, rig: Rig) -> None:
        core = await rig.run()
        rig.launcher.ready_at_once = None
        core.say(CoreFailed("ENGINE_FAULT", "a step failed as a whole: RuntimeError: device lost"))
        await lose(rig, "exit status 1")
        assert loss(rig) == "a step failed as a whole: RuntimeError: device lost"
        assert len(rig.launcher.cores) == 2

    async def test_every_loss_is_seen_by_those_who_watch(self, rig: Rig) -> None:
        await rig.run()
        async with aclosing(rig.engine.watch_model(NAME)) as views:
            assert (await anext(views)).core_loss is None
            await lose(rig, "first")
            await lose(rig, "second")
            seen = [await anext(views) for _ in range(4)]
        losses = [(view.core_loss.epoch, view.core_loss.reason) if view.core_loss else None for view in seen]
        assert losses == [(1, "the core died: first"), None, (2, "the core died: second"), None]
        assert [view.state for view in seen] == [ModelState.RUNNING] * 4
