"""A core that is lost is replaced: readers see a pause, and the request that did it is found."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from headrace_engine.errors import BadModel, HeadraceError, NotFound, OutOfMemory, Unavailable
from headrace_engine.messages import AddSequence, CoreFailed, CoreProgress, CoreStat, StepOutput
from headrace_engine.model_types import ModelPhase, ModelState
from headrace_engine.request_types import AcceptedRequest, ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus, SequenceView
from unit.engine.bench import NAME, Bench
from unit.engine.clock import settle
from unit.engine.scripted_core import READY, ScriptedCore


async def started(bench: Bench, count: int) -> list[AcceptedRequest]:
    """Requests with prompts (1, 1), (2, 2) and so on."""
    return [await bench.start((number, number)) for number in range(1, count + 1)]


def by_prompt(core: ScriptedCore) -> list[int]:
    """What a core was given, by the number of the prompt."""
    return [command.prompt[0] for command in core.added]


def command(core: ScriptedCore, number: int) -> AddSequence:
    """The last command for the prompt of this number."""
    return [command for command in core.added if command.prompt[0] == number][-1]


async def ids(bench: Bench, accepted: AcceptedRequest) -> list[int]:
    elements = await bench.unread(accepted.handle)
    return elements.token_ids if elements else []


async def ended(bench: Bench, accepted: AcceptedRequest) -> SequenceView:
    sequence = await bench.sequence(accepted.handle)
    assert sequence.end is not None
    return sequence


async def lose(bench: Bench, reason: str = "killed by signal 9") -> ScriptedCore:
    """Lose the core, and return the next one."""
    bench.core.die(reason)
    await settle()
    return bench.core


async def rest() -> None:
    """Let a heartbeat without a limit look often enough."""
    for _ in range(5):
        await settle()


async def prove(core: ScriptedCore, number: int) -> None:
    """Let a suspect go on by the two tokens that clear it."""
    for token_id in (90, 91):
        core.step({command(core, number).key: token_id})
    await settle()


def loss(bench: Bench) -> str | None:
    found = bench.engine.get_model(NAME).core_loss
    return found.reason if found else None


async def refused(bench: Bench) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        await bench.start()
    return caught.value


class TestHandOver:
    async def test_a_sequence_goes_on_where_its_log_ends(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start((5, 6, 7), config={"seed": 3, "max_new_tokens": 9, "min_new_tokens": 2})
        first = bench.added()
        core.step({first.key: 41}, scheduled={first.key: 0})
        core.step({first.key: 42})
        new = await lose(bench)
        again = new.added[-1]
        assert again.generated == (41, 42)
        assert again.key != first.key
        assert (again.prompt, again.sampling, again.max_new, again.min_new) == (
            first.prompt,
            first.sampling,
            first.max_new,
            first.min_new,
        )
        new.step({again.key: 43}, ended={again.key: FinishReason.MAX_LENGTH})
        results = await bench.read_all(accepted.handle)
        assert [token_id for result in results if result.elements for token_id in result.elements.token_ids] == [
            41,
            42,
            43,
        ]
        assert results[-1].status is GenerateStatus.FINISHED

    async def test_what_another_engine_generated_comes_before_what_this_one_did(self, bench: Bench) -> None:
        core = await bench.run()
        resume = (ResumedSequence(0, (11, 12)),)
        accepted = await bench.start(request_id="r1", handover=1, resume=resume)
        core.step({bench.added().key: 41})
        new = await lose(bench)
        assert new.added[0].generated == (11, 12, 41)
        await prove(new, 5)
        elements = await bench.unread(accepted.handle, 2)
        assert elements is not None
        assert elements.token_ids == [41, 90, 91]

    async def test_the_plan_is_the_same(self, bench: Bench) -> None:
        core = await bench.run(max_batch=4, num_blocks=77)
        assert (await lose(bench)).plan == core.plan

    async def test_a_reader_that_waits_sees_only_a_pause(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41})
        reading = asyncio.create_task(bench.read_all(accepted.handle))
        new = await lose(bench)
        assert not reading.done()
        new.step({bench.added().key: 42}, ended={bench.added().key: FinishReason.EOS})
        assert sum(len(result.elements.token_ids) for result in await reading if result.elements) == 2

    async def test_what_waited_follows_together_in_order_of_arrival(self, bench: Bench) -> None:
        await bench.run()
        await started(bench, 4)
        new = await lose(bench)
        assert by_prompt(new) == [1, 2, 3, 4]
        assert all(command.generated == () for command in new.added)
        assert loss(bench) is None

    async def test_what_the_old_core_still_says_appends_nothing(self, bench: Bench) -> None:
        """Its last words may be read after its loss was told; the new core computes them again."""
        bench.launcher.lingers = True
        core = await bench.run()
        accepted = await bench.start()
        old = bench.added().key
        core.step({old: 41})
        core.die()
        core.say(StepOutput(keys=[old], token_ids=[42]))
        await settle()
        core.say(StepOutput(keys=[old], token_ids=[42]))
        core.end_close()
        await settle()
        assert bench.added().generated == (41,)
        bench.core.step([(old, 42), (bench.added().key, 42)])
        assert await ids(bench, accepted) == [41, 42]

    async def test_the_next_core_starts_when_the_last_one_is_gone(self, bench: Bench) -> None:
        bench.launcher.lingers = True
        core = await bench.run()
        assert await lose(bench) is core
        assert core.closing
        core.end_close()
        await settle()
        assert bench.core is not core

    async def test_preempted_and_ended_sequences_are_no_suspects(self, bench: Bench) -> None:
        core = await bench.run()
        _, second, _ = await started(bench, 3)
        one, two, three = (command.key for command in core.added)
        core.step({one: 41, two: 41, three: 41})
        core.step({one: 42}, preempted=[three], ended={two: FinishReason.EOS})
        core.step({one: 43})
        new = await lose(bench)
        assert by_prompt(new) == [1]
        await prove(new, 1)
        assert by_prompt(new) == [1, 3]
        assert (await ended(bench, second)).generated_length == 1


class TestSuspects:
    async def test_are_tried_one_by_one_alone_before_the_others_follow(self, bench: Bench) -> None:
        core = await bench.run()
        await started(bench, 4)
        one, two, *_ = (command.key for command in core.added)
        core.begin(one, two)
        new = await lose(bench)
        assert by_prompt(new) == [1]
        await prove(new, 1)
        assert by_prompt(new) == [1, 2]
        assert new.ended == [new.added[0].key]
        assert loss(bench) is not None
        await prove(new, 2)
        assert by_prompt(new) == [1, 2, 1, 3, 4]
        assert command(new, 1).generated == (90, 91)
        assert command(new, 1).key != new.added[0].key
        assert loss(bench) is None

    async def test_one_token_of_a_suspect_proves_nothing_yet(self, bench: Bench) -> None:
        """The step that computed everything anew went well; the next one is of another kind."""
        core = await bench.run()
        await started(bench, 2)
        core.begin(core.added[0].key)
        new = await lose(bench)
        new.step({new.added[0].key: 41})
        await settle()
        assert by_prompt(new) == [1]

    async def test_what_a_suspect_computes_after_it_stepped_aside_is_dropped(self, bench: Bench) -> None:
        core = await bench.run()
        first, _ = await started(bench, 2)
        core.begin(*(command.key for command in core.added))
        new = await lose(bench)
        await prove(new, 1)
        new.step({new.added[0].key: 92})
        await prove(new, 2)
        assert await ids(bench, first) == [90, 91]
        new.step({command(new, 1).key: 92})
        assert await ids(bench, first) == [90, 91, 92]

    async def test_one_that_ends_in_its_trial_makes_way(self, bench: Bench) -> None:
        core = await bench.run()
        first, _ = await started(bench, 2)
        core.begin(*(command.key for command in core.added))
        new = await lose(bench)
        new.step({new.added[0].key: 41}, ended={new.added[0].key: FinishReason.EOS})
        await settle()
        assert by_prompt(new) == [1, 2]
        assert new.ended == []
        assert (await ended(bench, first)).status is GenerateStatus.FINISHED

    async def test_poison_is_found_and_no_other_request_suffers(self, bench: Bench) -> None:
        core = await bench.run()
        requests = await started(bench, 4)
        core.begin(*(command.key for command in core.added[:3]))
        new = await lose(bench)
        await prove(new, 1)
        new.begin(command(new, 2).key)
        newest = await lose(bench, "killed by signal 11")
        sequence = await ended(bench, requests[1])
        assert sequence.end is not None
        assert sequence.end.finish_reason is FinishReason.ERROR
        assert sequence.end.error is not None
        assert "was running when the core crashed twice" in sequence.end.error.message
        assert "killed by signal 11" in sequence.end.error.message
        assert by_prompt(newest) == [3]
        await prove(newest, 3)
        assert by_prompt(newest) == [3, 1, 4]
        assert bench.state is ModelState.RUNNING
        assert bench.engine.live_requests == 3

    async def test_poison_in_the_very_first_step_is_found(self, bench: Bench) -> None:
        """No output ever tells of it: the core says whose step begins before it computes it."""
        await bench.run()
        accepted = await bench.start()
        for _ in range(2):
            bench.core.begin(bench.added().key)
            await lose(bench)
        assert (await ended(bench, accepted)).status is GenerateStatus.INTERNAL_ERROR
        assert bench.core.added == []
        assert (bench.state, loss(bench)) == (ModelState.RUNNING, None)

    async def test_a_request_that_was_running_in_two_crashes_is_ended_however_far_apart(self, bench: Bench) -> None:
        core = await bench.run()
        running, waiting = await started(bench, 2)
        core.begin(core.added[0].key)
        new = await lose(bench)
        await prove(new, 1)
        bench.clock.advance(3600)
        new.step({command(new, 1).key: 50})
        newest = await lose(bench)
        assert (await ended(bench, running)).generated_length == 3
        assert by_prompt(newest) == [2]
        assert (await bench.sequence(waiting.handle)).end is None


class TestLimits:
    async def test_five_crashes_in_ten_minutes_are_borne_and_the_next_is_not(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        for number in range(1, 6):
            await lose(bench)
            assert (bench.state, len(bench.launcher.cores)) == (ModelState.RUNNING, number + 1)
            bench.clock.advance(100)
        await lose(bench, "killed by signal 6")
        view = bench.engine.get_model(NAME)
        assert (view.state, view.wanted_state, view.core_loss) == (ModelState.FAILED, ModelState.RUNNING, None)
        assert view.failure is not None
        assert "crashed 6 times in 10 minutes" in view.failure.message
        assert "killed by signal 6" in view.failure.message
        assert (await ended(bench, accepted)).status is GenerateStatus.INTERNAL_ERROR
        assert len(bench.launcher.cores) == 6

    async def test_crashes_are_forgotten_after_ten_minutes(self, bench: Bench) -> None:
        await bench.run()
        for _ in range(20):
            await lose(bench)
            bench.clock.advance(120)
        assert bench.state is ModelState.RUNNING

    async def test_crashes_of_the_warm_up_count_too(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        bench.launcher.ready_at_once = None
        states = []
        for _ in range(6):
            await lose(bench)
            states.append(bench.state)
        assert states == [ModelState.RUNNING] * 5 + [ModelState.FAILED]
        assert (await ended(bench, accepted)).status is GenerateStatus.INTERNAL_ERROR


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
        core.say(type(READY)(("CPU other",), *[getattr(READY, name) for name in READY.__slots__[1:]]))
        await settle()
        view = bench.engine.get_model(NAME)
        assert view.effective is not None
        assert (view.effective.devices, view.progress) == (("CPU other",), None)


class TestMeanwhile:
    @pytest.fixture
    async def core(self, bench: Bench) -> ScriptedCore:
        """The core of a model whose first core ended in a step of requests 1 and 2, while 3 waited."""
        core = await bench.run()
        self.requests = await started(bench, 3)
        one, two, _ = (command.key for command in core.added)
        core.step({one: 41, two: 41})
        bench.launcher.ready_at_once = None
        return await lose(bench)

    async def test_starts_are_refused_with_a_time_to_come_back(self, bench: Bench, core: ScriptedCore) -> None:
        for _ in range(2):  # While it warms up, and while suspects are tried.
            error = await refused(bench)
            assert isinstance(error, Unavailable)
            assert (error.reason, error.retry_after, error.metadata) == ("CORE_RESTARTING", 1.0, {"model_name": NAME})
            core.ready()
            await settle()
        await prove(core, 1)
        await prove(core, 2)
        await bench.start()

    async def test_the_model_is_running_and_does_not_serve(self, bench: Bench, core: ScriptedCore) -> None:
        (view,) = bench.engine.list_models()
        assert (view.state, view.serving, view.core_epoch) == (ModelState.RUNNING, False, 2)
        assert view.core_loss is not None
        assert view.core_loss.epoch == 1
        assert (await bench.engine.start_model(NAME)).state is ModelState.RUNNING
        core.ready()
        await settle()
        await prove(core, 1)
        assert not bench.engine.list_models()[0].serving
        await prove(core, 2)
        assert bench.engine.list_models()[0].serving

    async def test_there_is_progress_until_it_serves_again(self, bench: Bench, core: ScriptedCore) -> None:
        """The wire tells by it alone that a model that is RUNNING takes no requests."""
        views = [bench.engine.get_model(NAME)]
        core.ready()
        await settle()
        views.append(bench.engine.get_model(NAME))
        await prove(core, 1)
        views.append(bench.engine.get_model(NAME))
        assert [(view.serving, view.progress is None) for view in views] == [(False, False)] * 3
        await prove(core, 2)
        assert bench.engine.get_model(NAME).progress is None

    async def test_a_request_that_is_stopped_before_the_new_core_is_ready_is_not_handed_over(
        self, bench: Bench, core: ScriptedCore
    ) -> None:
        (view,) = await bench.engine.stop_request(self.requests[0].handle, "")
        assert view.end is not None
        assert view.end.finish_reason is FinishReason.STOPPED
        await bench.engine.release_request(self.requests[2].handle, "")
        core.ready()
        await settle()
        assert by_prompt(core) == [2]
        await prove(core, 2)
        assert by_prompt(core) == [2]
        assert loss(bench) is None

    @pytest.mark.parametrize("verb", ["stop", "release"])
    async def test_a_suspect_that_is_stopped_in_its_trial_makes_way(
        self, bench: Bench, core: ScriptedCore, verb: str
    ) -> None:
        core.ready()
        await settle()
        call = bench.engine.stop_request if verb == "stop" else bench.engine.release_request
        await call(self.requests[0].handle, "")
        await settle()
        assert core.ended == [core.added[0].key]
        assert by_prompt(core) == [1, 2]

    async def test_a_request_that_stepped_aside_can_be_stopped(self, bench: Bench, core: ScriptedCore) -> None:
        core.ready()
        await settle()
        await prove(core, 1)
        (view,) = await bench.engine.stop_request(self.requests[0].handle, "")
        assert view.generated_length == 3
        await prove(core, 2)
        assert by_prompt(core) == [1, 2, 3]

    async def test_sync_waits_for_the_new_core_s_answers(self, bench: Bench, core: ScriptedCore) -> None:
        sync = asyncio.create_task(bench.engine.sync_request(handle=self.requests[0].handle))
        core.ready()
        await settle()
        assert not sync.done()
        core.step({core.added[0].key: 42}, ended={core.added[0].key: FinishReason.EOS})
        (view,) = await sync
        assert view.sequences[0].generated_length == 2

    async def test_a_stop_lets_the_restart_go_on_within_the_drain_limit(self, bench: Bench, core: ScriptedCore) -> None:
        stop = asyncio.create_task(bench.engine.stop_model(NAME))
        await settle()
        core.ready()
        await settle()
        await prove(core, 1)
        await prove(core, 2)
        progress = bench.engine.get_model(NAME).progress
        assert progress is not None
        assert progress.phase is ModelPhase.DRAINING
        keys = {number: command(core, number).key for number in (1, 2, 3)}
        core.step(dict.fromkeys(keys.values(), 50), ended=dict.fromkeys(keys.values(), FinishReason.MAX_LENGTH))
        assert (await stop).state is ModelState.STOPPED
        assert [(await ended(bench, each)).generated_length for each in self.requests] == [4, 4, 1]

    async def test_a_stop_with_nothing_running_does_not_wait_for_the_new_core(
        self, bench: Bench, core: ScriptedCore
    ) -> None:
        for request in self.requests:
            await bench.engine.stop_request(request.handle, "")
        view = await bench.engine.stop_model(NAME)
        assert (view.state, view.core_loss) == (ModelState.STOPPED, None)
        assert core.closed
        bench.launcher.ready_at_once = READY
        await bench.engine.start_model(NAME)
        await bench.start()
        assert len(bench.core.added) == 1

    async def test_the_end_of_the_engine_ends_the_restart(self, bench: Bench, core: ScriptedCore) -> None:
        await bench.engine.drain(0)
        assert [(await ended(bench, each)).status for each in self.requests] == [GenerateStatus.INTERRUPTED] * 3
        await bench.engine.close()
        assert core.closed
        assert len(bench.launcher.cores) == 2

    async def test_a_release_of_all_requests_leaves_a_core_that_serves(self, bench: Bench, core: ScriptedCore) -> None:
        for request in self.requests:
            await bench.engine.release_request(request.handle, "")
        core.ready()
        await settle()
        assert (core.added, loss(bench)) == ([], None)
        await bench.start()
        with pytest.raises(NotFound):
            await bench.sequence(self.requests[0].handle)


class TestStopping:
    async def test_a_core_that_dies_while_requests_drain_is_replaced(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41})
        stop = asyncio.create_task(bench.engine.stop_model(NAME))
        await settle()
        new = await lose(bench)
        assert bench.state is ModelState.STOPPING
        new.step({bench.added().key: 42}, ended={bench.added().key: FinishReason.EOS})
        assert (await stop).state is ModelState.STOPPED
        assert (await ended(bench, accepted)).status is GenerateStatus.FINISHED

    async def test_where_that_fails_the_requests_end_and_the_stop_goes_on(self, bench: Bench) -> None:
        await bench.run()
        accepted = await bench.start()
        stop = asyncio.create_task(bench.engine.stop_model(NAME))
        await settle()
        bench.launcher.ready_at_once = None
        (await lose(bench)).fail("OUT_OF_MEMORY", "lower one of them")
        assert (await stop).state is ModelState.STOPPED
        assert (await ended(bench, accepted)).status is GenerateStatus.INTERNAL_ERROR

    async def test_after_the_drain_limit_the_restart_is_given_up(self, bench: Bench) -> None:
        await bench.run(drain_limit=0.0)
        accepted = await bench.start()
        bench.launcher.ready_at_once = None
        core = await lose(bench)
        assert (await bench.engine.stop_model(NAME)).state is ModelState.STOPPED
        end = (await ended(bench, accepted)).end
        assert end is not None
        assert end.finish_reason is FinishReason.DRAINED
        assert core.closed
        assert len(bench.launcher.cores) == 2


class TestHungCore:
    async def test_a_core_that_answers_nothing_is_killed_and_replaced(self, bench: Bench) -> None:
        bench.new_engine(core_ping_limit=0.0)
        core = await bench.run()
        accepted = await bench.start()
        core.step({bench.added().key: 41})
        await rest()
        assert (core.killed, core.closed) == (False, False)
        core.answers = False
        await rest()
        assert (core.killed, core.closed) == (True, True)
        new = bench.core
        assert new is not core
        assert new.added[0].generated == (41,)
        await prove(new, 5)
        assert await ids(bench, accepted) == [41, 90, 91]
        assert bench.engine.get_model(NAME).core_epoch == 2

    async def test_a_core_that_loads_is_not_asked(self, bench: Bench) -> None:
        bench.new_engine(core_ping_limit=0.0)
        bench.launcher.ready_at_once = None
        await bench.install()
        start = asyncio.create_task(bench.engine.start_model(NAME))
        await settle()
        bench.core.answers = False
        await rest()
        assert not bench.core.killed
        bench.core.answers = True
        bench.core.ready()
        await start


class TestFacts:
    async def test_statistics_go_on(self, bench: Bench) -> None:
        core = await bench.run()
        accepted = await bench.start()
        arrival = bench.clock()
        bench.clock.advance(1)
        key = bench.added().key
        core.step({key: 41}, scheduled={key: 2}, stat=CoreStat(generated_tokens=1, prefilled_tokens=3))
        bench.clock.advance(5)
        new = await lose(bench)
        again = new.added[0].key
        new.step({again: 42}, scheduled={again: 0}, stat=CoreStat(generated_tokens=1, prefilled_tokens=4))
        new.step(ended={again: FinishReason.EOS}, stat=CoreStat(generated_tokens=1, prefilled_tokens=4))
        stat = (await ended(bench, accepted)).stat
        assert (stat.arrival_time, stat.scheduled_time, stat.first_token_time) == (arrival, arrival + 1, arrival + 1)
        assert (stat.context_cached_length, stat.preemptions, stat.generated_token_length) == (2, 0, 2)
        (engine,) = bench.engine.engine_stats(NAME)
        assert (engine.generated_tokens, engine.prefilled_tokens, engine.core_epoch) == (2, 7, 2)

    async def test_all_that_has_not_ended_waits_until_the_new_core_takes_it_up(self, bench: Bench) -> None:
        core = await bench.run()
        await started(bench, 2)
        one, two = (command.key for command in core.added)
        core.step({one: 41, two: 41}, scheduled={one: 0, two: 0})
        new = await lose(bench)
        (stat,) = bench.engine.engine_stats(NAME)
        assert (stat.running, stat.waiting) == (0, 2)
        new.step({new.added[0].key: 42}, scheduled={new.added[0].key: 0})
        (stat,) = bench.engine.engine_stats(NAME)
        assert (stat.running, stat.waiting) == (1, 1)

    async def test_the_core_s_own_words_come_before_the_news_of_its_death(self, bench: Bench) -> None:
        core = await bench.run()
        bench.launcher.ready_at_once = None
        core.say(CoreFailed("ENGINE_FAULT", "a step failed as a whole: RuntimeError: device lost"))
        await lose(bench, "exit status 1")
        assert loss(bench) == "a step failed as a whole: RuntimeError: device lost"
        assert len(bench.launcher.cores) == 2

    async def test_every_loss_is_seen_by_those_who_watch(self, bench: Bench) -> None:
        await bench.run()
        async with aclosing(bench.engine.watch_model(NAME)) as views:
            assert (await anext(views)).core_loss is None
            await lose(bench, "first")
            await lose(bench, "second")
            seen = [await anext(views) for _ in range(4)]
        losses = [(view.core_loss.epoch, view.core_loss.reason) if view.core_loss else None for view in seen]
        assert losses == [(1, "the core died: first"), None, (2, "the core died: second"), None]
        assert [view.state for view in seen] == [ModelState.RUNNING] * 4
