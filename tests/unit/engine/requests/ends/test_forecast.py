"""What steps take, and which deadlines are refused for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headrace_engine.engine.config.generation import Generation
from headrace_engine.engine.cores.waiting_queue import Waiting, WaitingQueue
from headrace_engine.engine.requests.forecast import Work, forecast, work_of
from headrace_engine.engine.results.step_times import MEMORY, StepTimes
from headrace_engine.errors import DeadlineExceeded
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import SamplingParams
from headrace_engine.stat_types import CoreStat, Counters
from support.clocks.clock import FakeClock
from support.engine.rig import NAME, Rig
from support.scripted.core import READY, ScriptedCore


class TestStepTimes:
    def test_before_the_first_step_nothing_is_foretold(self) -> None:
        assert StepTimes(FakeClock()).time_of(100) == 0
        assert StepTimes(FakeClock()).time_of_all(1000, 100) == 0

    def test_a_size_that_was_seen_has_its_mean(self) -> None:
        times = StepTimes(FakeClock())
        for _ in range(100):
            times.note(100, 0.5)
        assert times.time_of(100) == pytest.approx(0.5)
        for _ in range(100):
            times.note(100, 0.1)
        assert times.time_of(100) == pytest.approx(0.1, rel=0.01)

    def test_a_larger_step_takes_what_the_largest_known_one_took(self) -> None:
        times = StepTimes(FakeClock())
        times.note(4, 0.01)
        times.note(64, 0.08)
        assert times.time_of(2000) == pytest.approx(0.08)
        assert times.time_of(5) == pytest.approx(0.01)

    def test_a_step_below_its_classs_mean_takes_its_share(self) -> None:
        times = StepTimes(FakeClock())
        times.note(120, 0.6)
        assert times.time_of(64) == pytest.approx(0.32)

    def test_smaller_than_all_that_was_seen_is_unknown(self) -> None:
        times = StepTimes(FakeClock())
        times.note(64, 0.1)
        assert times.time_of(3) == 0

    def test_what_no_step_confirms_is_forgotten(self) -> None:
        clock = FakeClock()
        times = StepTimes(clock)
        times.note(4, 0.01)
        times.note(64, 5.0)
        clock.advance(MEMORY)
        times.note(4, 0.01)
        assert times.time_of(64) == pytest.approx(5.0)
        clock.advance(0.1)
        assert times.time_of(64) == pytest.approx(0.01)
        times.note(64, 0.05)
        assert times.time_of(64) == pytest.approx(0.05)

    def test_many_tokens_take_as_many_steps_as_they_need(self) -> None:
        times = StepTimes(FakeClock())
        times.note(100, 1.0)
        times.note(16, 0.1)
        assert times.time_of_all(416, 100) == pytest.approx(4 * 1.0 + 0.1)
        assert times.time_of_all(400, 100) == pytest.approx(4 * 1.0)


class TestWaitingQueue:
    def test_those_of_the_same_or_a_higher_priority_are_ahead(self) -> None:
        line = WaitingQueue()
        for key, priority in enumerate([0, 5, -1, 0]):
            line.add(key, Waiting(priority))
        assert [line.ahead_of(priority) for priority in (-5, -1, 0, 1, 5, 6)] == [4, 4, 3, 1, 1, 0]
        line.discard(1)
        line.discard(1)
        assert (len(line), line.ahead_of(5), list(line)) == (3, 0, [0, 2, 3])


class TestWork:
    def work(self, *, eos: tuple[int, ...] = (2,), min_new: int = 0, delivered: int = 0, **config: Any) -> Work:
        generation = Generation(GenerationConfig(**config), SamplingParams(), eos, 40, min_new, ())
        return work_of(generation, 10, delivered)

    def test_an_answer_that_may_stop_early_needs_its_minimum_alone(self) -> None:
        assert self.work().generated == 1
        assert self.work(min_new=7).generated == 7
        assert self.work(eos=(), stop_words=("end",)).generated == 1
        assert self.work(eos=(), stop_token_ids=(3,), min_new=5).generated == 5

    def test_what_nothing_ends_needs_all(self) -> None:
        assert self.work(eos=()).generated == 40

    def test_what_was_delivered_is_known_and_need_not_be_generated(self) -> None:
        work = self.work(eos=(), delivered=15)
        assert (work.known, work.generated) == (25, 25)

    def test_candidates_count_as_sequences(self) -> None:
        assert [self.work().sequences, self.work(n=3).sequences, self.work(n=2, best_of=5).sequences] == [1, 3, 5]

    def test_what_asks_for_no_cache_computes_its_whole_prompt(self) -> None:
        assert self.work().reuses
        assert not self.work(use_prefix_cache=False).reuses
        assert not self.work(prompt_logprobs=0).reuses


def measure(core: ScriptedCore, rig: Rig, tokens: int, seconds: float) -> None:
    """A step that computed so many tokens for nobody who is here."""
    before = rig.engine._models.get(NAME).outputs.history.last
    stat = CoreStat(counters=Counters(prefilled_tokens=before.counters.prefilled_tokens + tokens))
    core.step([(999, 1)], stat=stat, step_time=seconds)


async def run(rig: Rig, **changes: Any) -> ScriptedCore:
    """A model that takes 512 tokens."""
    rig.launcher.ready_at_once = replace(READY, max_length=512)
    return await rig.run(**changes)


async def missed(rig: Rig, prompt: int = 3, **config: Any) -> DeadlineExceeded:
    with pytest.raises(DeadlineExceeded) as caught:
        await rig.start((5,) * prompt, config=config)
    assert caught.value.reason == "DEADLINE_NOT_MET"
    assert caught.value.metadata == {"model_name": NAME}
    return caught.value


class TestRefusals:
    async def test_without_measurements_every_deadline_is_accepted(self, rig: Rig) -> None:
        core = await run(rig)
        await rig.start((5,) * 400, config={"deadline": 1e-6, "ignore_eos": True})
        assert len(core.added) == 1

    async def test_tokens_that_must_be_generated_take_their_steps(self, rig: Rig) -> None:
        core = await run(rig)
        measure(core, rig, 1, 0.05)
        sent = {"ignore_eos": True, "max_new_tokens": 101}
        error = await missed(rig, deadline=4.9, **sent)
        assert error.message == (
            "the deadline of 4.9 s cannot be met: by the rates measured it takes 5.05 s at least "
            "(0.05 s for 3 prompt tokens, 5 s for at least 101 new tokens)"
        )
        assert not core.added
        await rig.start(config={"deadline": 5.2, **sent})

    async def test_what_may_end_early_is_not_refused_for_unneeded_tokens(self, rig: Rig) -> None:
        core = await run(rig)
        measure(core, rig, 1, 0.05)
        await rig.start(config={"deadline": 0.2, "max_new_tokens": 101})
        await missed(rig, deadline=0.2, max_new_tokens=101, min_new_tokens=50)

    async def test_a_prompt_takes_the_steps_of_its_chunks(self, rig: Rig) -> None:
        core = await run(rig, max_prefill_tokens=64)
        measure(core, rig, 64, 1.0)
        assert "6 s for 384 prompt tokens" in (await missed(rig, 384, deadline=5.0)).message
        await rig.start((5,) * 384, config={"deadline": 6.5})

    async def test_prompts_ahead_come_first(self, rig: Rig) -> None:
        core = await run(rig, max_prefill_tokens=64)
        measure(core, rig, 64, 1.0)
        await rig.start((5,) * 128)
        await rig.start((5,) * 128, config={"priority": -1})
        assert "4 s for 128 prompt tokens" in (await missed(rig, 128, deadline=3.0)).message
        await rig.start((5,) * 128, config={"deadline": 3.0, "priority": 1})

    async def test_a1_longer_prompts_are_not_waited_for(self, rig: Rig) -> None:
        """Nor are shorter ones for more than what they have of the steps beside it; those of a higher priority are."""
        core = await run(rig, max_prefill_tokens=64)
        measure(core, rig, 64, 1.0)
        await rig.start((5,) * 400)
        await rig.start((5,) * 64, config={"deadline": 1.5})
        for _ in range(8):
            await rig.start((5,) * 64)
        assert "4 s for 64 prompt tokens" in (await missed(rig, 64, deadline=3.0)).message
        await rig.start((5,) * 400, config={"priority": 1})
        assert "10 s for 64 prompt tokens" in (await missed(rig, 64, deadline=9.5)).message

    async def test_a_prompt_ahead_is_counted_once_for_all_its_sequences(self, rig: Rig) -> None:
        core = await run(rig, max_prefill_tokens=64)
        measure(core, rig, 64, 1.0)
        await rig.start((5,) * 128, config={"n": 4})
        assert "4 s for 128 prompt tokens" in (await missed(rig, 128, deadline=3.0)).message
        outputs = rig.engine._models.get(NAME).outputs
        assert outputs.tokens_to_prefill == 128
        first, *others = [command.key for command in core.added[-4:]]
        core.step(scheduled={first: 0})
        await rig.start((5,) * 64, config={"deadline": 2.0})
        assert outputs.tokens_to_prefill == 128 + 64
        core.step(scheduled=dict.fromkeys(others, 112))
        assert outputs.tokens_to_prefill == 128 + 64 + 3 * 16

    async def test_what_the_cache_gave_others_it_may_give_again(self, rig: Rig) -> None:
        core = await run(rig, max_prefill_tokens=64)
        measure(core, rig, 64, 1.0)
        await rig.start((5,) * 128)
        core.step(scheduled={rig.added().key: 112})
        await rig.start((5,) * 256, config={"deadline": 1.0})
        await missed(rig, 256, deadline=1.0, use_prefix_cache=False)

    async def test_where_the_batch_is_full_somebody_must_end_first(self, rig: Rig) -> None:
        core = await run(rig, max_batch=1)
        await rig.start()
        core.step(scheduled={rig.added().key: 0})
        rig.clock.advance(20)
        core.step(ended={rig.added().key: FinishReason.EOS})
        await rig.start(config={"deadline": 1.0})
        core.step(scheduled={rig.added().key: 0})
        assert "20 s for requests ahead of it (priority 0)" in (await missed(rig, deadline=19.0)).message
        await rig.start(config={"deadline": 21.0})
        assert "40 s for requests ahead" in (await missed(rig, deadline=21.0)).message
        await rig.start(config={"deadline": 21.0, "priority": 1})

    async def test_sequences_of_a_request_need_slots_and_share_the_prompt(self, rig: Rig) -> None:
        core = await run(rig, max_batch=4)
        measure(core, rig, 1, 0.1)
        measure(core, rig, 4, 0.4)
        model = rig.engine._models.get(NAME)
        one, four = (forecast(model, Work(known=1, generated=11, sequences=count)) for count in (1, 4))
        assert (one.prompt, one.generation) == pytest.approx((0.1, 1.0))
        assert (four.prompt, four.generation) == pytest.approx((0.1, 4.0))
        assert (one.queue, four.queue) == (0, 0)
        model.outputs.recent.mean_service = 8.0
        assert forecast(model, Work(known=1, generated=1, sequences=6)).queue == pytest.approx(2 * 8.0 / 4)

    async def test_the_time_that_tokenising_took_counts(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        await run(rig)
        check = "headrace_engine.engine.requests.resolution.check_prompt_length"
        monkeypatch.setattr(check, lambda *args: rig.clock.advance(3.0))
        error = await missed(rig, deadline=3.0)
        assert "3 s to prepare it" in error.message
        await rig.start(config={"deadline": 3.5})

    async def test_a_new_core_is_measured_anew(self, rig: Rig) -> None:
        core = await run(rig)
        measure(core, rig, 1, 10.0)
        await missed(rig, deadline=1.0)
        await rig.engine.stop_model(NAME)
        await rig.engine.start_model(NAME)
        await rig.start(config={"deadline": 1.0})

    async def test_one_slow_step_does_not_refuse_for_ever(self, rig: Rig) -> None:
        """Whatever is refused measures nothing, so what was measured is not believed for long."""
        core = await run(rig)
        measure(core, rig, 1, 10.0)
        await missed(rig, deadline=1.0)
        rig.clock.advance(MEMORY + 1)
        await rig.start(config={"deadline": 1.0})

    async def test_a_refused_start_leaves_its_key_free(self, rig: Rig) -> None:
        core = await run(rig)
        measure(core, rig, 1, 10.0)
        with pytest.raises(DeadlineExceeded):
            await rig.start(config={"deadline": 1.0}, request_id="r1", content=b"x")
        await rig.start(config={"deadline": 30.0}, request_id="r1", content=b"y")

    async def test_a_hand_over_that_has_ended_needs_no_time(self, rig: Rig) -> None:
        core = await run(rig)
        measure(core, rig, 1, 10.0)
        resume = (ResumedSequence(0, delivered_ids=[9, 2], ended=True),)
        await rig.start(config={"deadline": 1.0}, request_id="r1", handover=1, resume=resume)


async def test_waiting_ahead_counts_those_that_are_served_first(rig: Rig) -> None:
    await run(rig)
    await rig.start(config={"priority": 1})
    await rig.start(config={"priority": -1})
    assert (await rig.start()).waiting_ahead == 1
    assert (await rig.start(config={"priority": 2})).waiting_ahead == 0
    assert (await rig.start(config={"priority": -1})).waiting_ahead == 4
