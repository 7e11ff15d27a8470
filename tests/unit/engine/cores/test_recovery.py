"""A core that is lost is replaced: readers see a pause, and the request that did it is found."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.ipc.step_output import StepOutput
from headrace_engine.model_types import ModelState
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason, GenerateStatus
from support.clocks.clock import settle
from support.engine.restarts import by_prompt, command, ended, ids, lose, loss, prove, started
from support.engine.rig import NAME, Rig


class TestHandOver:
    async def test_a_sequence_goes_on_where_its_log_ends(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start((5, 6, 7), config={"seed": 3, "max_new_tokens": 9, "min_new_tokens": 2})
        first = rig.added()
        core.step({first.key: 41}, scheduled={first.key: 0})
        core.step({first.key: 42})
        new = await lose(rig)
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
        results = await rig.read_all(accepted.handle)
        assert [token_id for result in results if result.elements for token_id in result.elements.token_ids] == [
            41,
            42,
            43,
        ]
        assert results[-1].status is GenerateStatus.FINISHED

    async def test_another_engines_tokens_come_before_this_ones(self, rig: Rig) -> None:
        core = await rig.run()
        resume = (ResumedSequence(0, (11, 12)),)
        accepted = await rig.start(request_id="r1", handover=1, resume=resume)
        core.step({rig.added().key: 41})
        new = await lose(rig)
        assert new.added[0].generated == (11, 12, 41)
        await prove(new, 5)
        elements = await rig.unread(accepted.handle, 2)
        assert elements is not None
        assert elements.token_ids == [41, 90, 91]

    async def test_the_plan_is_the_same(self, rig: Rig) -> None:
        core = await rig.run(max_batch=4, num_blocks=77)
        assert (await lose(rig)).plan == core.plan

    async def test_a_reader_that_waits_sees_only_a_pause(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start()
        core.step({rig.added().key: 41})
        reading = asyncio.create_task(rig.read_all(accepted.handle))
        new = await lose(rig)
        assert not reading.done()
        new.step({rig.added().key: 42}, ended={rig.added().key: FinishReason.EOS})
        assert sum(len(result.elements.token_ids) for result in await reading if result.elements) == 2

    async def test_what_waited_follows_together_in_order_of_arrival(self, rig: Rig) -> None:
        await rig.run()
        await started(rig, 4)
        new = await lose(rig)
        assert by_prompt(new) == [1, 2, 3, 4]
        assert all(command.generated == () for command in new.added)
        assert loss(rig) is None

    async def test_what_the_old_core_still_says_appends_nothing(self, rig: Rig) -> None:
        """Its last words may be read after its loss was told; the new core computes them again."""
        rig.launcher.lingers = True
        core = await rig.run()
        accepted = await rig.start()
        old = rig.added().key
        core.step({old: 41})
        core.die()
        core.say(StepOutput(keys=[old], token_ids=[42]))
        await settle()
        core.say(StepOutput(keys=[old], token_ids=[42]))
        core.end_close()
        await settle()
        assert rig.added().generated == (41,)
        rig.core.step([(old, 42), (rig.added().key, 42)])
        assert await ids(rig, accepted) == [41, 42]

    async def test_the_next_core_starts_when_the_last_one_is_gone(self, rig: Rig) -> None:
        rig.launcher.lingers = True
        core = await rig.run()
        assert await lose(rig) is core
        assert core.closing
        core.end_close()
        await settle()
        assert rig.core is not core

    async def test_preempted_and_ended_sequences_are_no_suspects(self, rig: Rig) -> None:
        core = await rig.run()
        _, second, _ = await started(rig, 3)
        one, two, three = (command.key for command in core.added)
        core.step({one: 41, two: 41, three: 41})
        core.step({one: 42}, preempted=[three], ended={two: FinishReason.EOS})
        core.step({one: 43})
        new = await lose(rig)
        assert by_prompt(new) == [1]
        await prove(new, 1)
        assert by_prompt(new) == [1, 3]
        assert (await ended(rig, second)).generated_length == 1


class TestSuspects:
    async def test_are_tried_one_by_one_alone_before_the_others_follow(self, rig: Rig) -> None:
        core = await rig.run()
        await started(rig, 4)
        one, two, *_ = (command.key for command in core.added)
        core.begin(one, two)
        new = await lose(rig)
        assert by_prompt(new) == [1]
        await prove(new, 1)
        assert by_prompt(new) == [1, 2]
        assert new.ended == [new.added[0].key]
        assert loss(rig) is not None
        await prove(new, 2)
        assert by_prompt(new) == [1, 2, 1, 3, 4]
        assert command(new, 1).generated == (90, 91)
        assert command(new, 1).key != new.added[0].key
        assert loss(rig) is None

    async def test_one_token_of_a_suspect_proves_nothing_yet(self, rig: Rig) -> None:
        """The step that computed everything anew went well; the next one is of another kind."""
        core = await rig.run()
        await started(rig, 2)
        core.begin(core.added[0].key)
        new = await lose(rig)
        new.step({new.added[0].key: 41})
        await settle()
        assert by_prompt(new) == [1]

    async def test_what_a_suspect_computes_after_stepping_aside_is_dropped(self, rig: Rig) -> None:
        core = await rig.run()
        first, _ = await started(rig, 2)
        core.begin(*(command.key for command in core.added))
        new = await lose(rig)
        await prove(new, 1)
        new.step({new.added[0].key: 92})
        await prove(new, 2)
        assert await ids(rig, first) == [90, 91]
        new.step({command(new, 1).key: 92})
        assert await ids(rig, first) == [90, 91, 92]

    async def test_one_that_ends_in_its_trial_makes_way(self, rig: Rig) -> None:
        core = await rig.run()
        first, _ = await started(rig, 2)
        core.begin(*(command.key for command in core.added))
        new = await lose(rig)
        new.step({new.added[0].key: 41}, ended={new.added[0].key: FinishReason.EOS})
        await settle()
        assert by_prompt(new) == [1, 2]
        assert new.ended == []
        assert (await ended(rig, first)).status is GenerateStatus.FINISHED

    async def test_poison_is_found_and_no_other_request_suffers(self, rig: Rig) -> None:
        core = await rig.run()
        requests = await started(rig, 4)
        core.begin(*(command.key for command in core.added[:3]))
        new = await lose(rig)
        await prove(new, 1)
        new.begin(command(new, 2).key)
        newest = await lose(rig, "killed by signal 11")
        sequence = await ended(rig, requests[1])
        assert sequence.end is not None
        assert sequence.end.finish_reason is FinishReason.ERROR
        assert sequence.end.error is not None
        assert "was running when the core crashed twice" in sequence.end.error.message
        assert "killed by signal 11" in sequence.end.error.message
        assert by_prompt(newest) == [3]
        await prove(newest, 3)
        assert by_prompt(newest) == [3, 1, 4]
        assert rig.state is ModelState.RUNNING
        assert rig.engine.live_requests == 3

    async def test_poison_in_the_very_first_step_is_found(self, rig: Rig) -> None:
        """No output ever tells of it: the core says whose step begins before it computes it."""
        await rig.run()
        accepted = await rig.start()
        for _ in range(2):
            rig.core.begin(rig.added().key)
            await lose(rig)
        assert (await ended(rig, accepted)).status is GenerateStatus.INTERNAL_ERROR
        assert rig.core.added == []
        assert (rig.state, loss(rig)) == (ModelState.RUNNING, None)

    async def test_a_request_running_in_two_crashes_is_ended(self, rig: Rig) -> None:
        core = await rig.run()
        running, waiting = await started(rig, 2)
        core.begin(core.added[0].key)
        new = await lose(rig)
        await prove(new, 1)
        rig.clock.advance(3600)
        new.step({command(new, 1).key: 50})
        newest = await lose(rig)
        assert (await ended(rig, running)).generated_length == 3
        assert by_prompt(newest) == [2]
        assert (await rig.sequence(waiting.handle)).end is None


class TestBeams:
    CONFIG = {"num_beams": 4, "n": 2, "do_sample": False, "max_new_tokens": 9}  # noqa: RUF012

    async def test_a_search_is_one_command_and_begins_anew(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start((1, 1), config=self.CONFIG)
        first = rig.added()
        assert first.beams is not None
        assert [(each.index, each.delivered) for each in first.beams.wanted] == [(0, ()), (1, ())]
        core.begin(*(each.key for each in first.beams.wanted))
        new = await lose(rig)
        again = new.added[-1]
        assert len(new.added) == 1
        assert again.beams is not None
        assert {each.key for each in again.beams.wanted}.isdisjoint(each.key for each in first.beams.wanted)
        keys = [each.key for each in again.beams.wanted]
        new.step([(keys[0], 41), (keys[0], 42), (keys[1], 43)], ended=dict.fromkeys(keys, FinishReason.EOS))
        assert await ids(rig, accepted) == [41, 42]
        view, _ = await rig.engine.get_request(handle=accepted.handle)
        assert [sequence.generated_length for sequence in view.sequences] == [2, 1]

    async def test_its_progress_clears_a_suspect(self, rig: Rig) -> None:
        """Others follow once its beams have grown twice; it goes on from there."""
        core = await rig.run()
        await rig.start((1, 1), config=self.CONFIG)
        await rig.start((2, 2))
        core.begin(*(each.key for each in core.added[0].beams.wanted))
        new = await lose(rig)
        assert by_prompt(new) == [1]
        keys = [each.key for each in new.added[0].beams.wanted]
        new.say(StepOutput(searched=dict.fromkeys(keys, 1)))
        await settle()
        assert by_prompt(new) == [1]
        new.say(StepOutput(searched=dict.fromkeys(keys, 2)))
        await settle()
        assert by_prompt(new) == [1, 2]

    async def test_what_was_reported_before_a_crash_comes_once(self, rig: Rig) -> None:
        core = await rig.run()
        accepted = await rig.start((1, 1), config=self.CONFIG)
        keys = [each.key for each in rig.added().beams.wanted]
        core.step([(keys[0], 41), (keys[0], 42)])
        again = (await lose(rig)).added[-1]
        assert [each.delivered for each in again.beams.wanted] == [(41, 42), ()]
        assert again.generated == ()
        assert await ids(rig, accepted) == [41, 42]

    async def test_all_beams_count_in_the_queue(self, rig: Rig) -> None:
        await rig.run(max_batch=4, max_waiting=4)
        await rig.start((1, 1), config=self.CONFIG)
        assert rig.engine.engine_stats(NAME)[0].waiting == 4


class TestLimits:
    async def test_five_crashes_in_ten_minutes_are_borne_and_no_sixth(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        for number in range(1, 6):
            await lose(rig)
            assert (rig.state, len(rig.launcher.cores)) == (ModelState.RUNNING, number + 1)
            rig.clock.advance(100)
        await lose(rig, "killed by signal 6")
        view = rig.engine.get_model(NAME)
        assert (view.state, view.wanted_state, view.core_loss) == (ModelState.FAILED, ModelState.RUNNING, None)
        assert view.failure is not None
        assert "crashed 6 times in 10 minutes" in view.failure.message
        assert "killed by signal 6" in view.failure.message
        assert (await ended(rig, accepted)).status is GenerateStatus.INTERNAL_ERROR
        assert len(rig.launcher.cores) == 6

    @pytest.mark.parametrize(("handed_over", "reason"), [(False, FinishReason.ERROR), (True, FinishReason.ENGINE_LOST)])
    async def test_the_operator_says_how_requests_of_a_lost_card_end(
        self, rig: Rig, handed_over: bool, reason: FinishReason
    ) -> None:
        """ENGINE_LOST is what clients continue at another engine."""
        rig.new_engine(hand_over_failed=handed_over)
        await rig.run()
        accepted = await rig.start()
        rig.launcher.ready_at_once = None
        (await lose(rig)).fail("INVALID_FIELD", "there is no such card any more")
        await settle()
        sequence = await ended(rig, accepted)
        assert rig.state is ModelState.FAILED
        assert sequence.end is not None
        assert (sequence.end.finish_reason, sequence.end.status) == (reason, GenerateStatus.INTERNAL_ERROR)
        assert sequence.end.error is not None
        assert "there is no such card any more" in sequence.end.error.message

    async def test_crashes_are_forgotten_after_ten_minutes(self, rig: Rig) -> None:
        await rig.run()
        for _ in range(20):
            await lose(rig)
            rig.clock.advance(120)
        assert rig.state is ModelState.RUNNING

    async def test_crashes_of_the_warm_up_count_too(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start()
        rig.launcher.ready_at_once = None
        states = []
        for _ in range(6):
            await lose(rig)
            states.append(rig.state)
        assert states == [ModelState.RUNNING] * 5 + [ModelState.FAILED]
        assert (await ended(rig, accepted)).status is GenerateStatus.INTERNAL_ERROR
