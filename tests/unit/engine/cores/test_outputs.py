"""From the steps of a core to logs: order, text, times, ends."""

from __future__ import annotations

import asyncio
import math
from itertools import count
from typing import Any

import pytest
from headrace_engine.characters.detokenizer import Detokenizer
from headrace_engine.engine.cores.outputs import Outputs
from headrace_engine.engine.results.result_log import ResultLog
from headrace_engine.engine.results.sequence import Sequence
from headrace_engine.engine.results.statistics import SequenceTimes, StepHistory
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.step_output import Ended, Scheduled, StepOutput
from headrace_engine.result_types import FinishReason, GenerateStatus
from headrace_engine.sampling_params import SamplingParams
from headrace_engine.token_types import TopLogprobs
from support.clocks.clock import FakeClock, settle
from support.models.vocabularies import byte_level, pieces

BYTES = byte_level()
EMOJI = BYTES.encode("👍").ids


class Rig:
    """The outputs of a model, with sequences that were accepted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.outputs = Outputs(self.clock, StepHistory(self.clock))
        self._keys = count(1)

    def accept(self, *, logprobs: bool = False, top_count: int = 0) -> Sequence:
        decoder = Detokenizer(pieces(BYTES).__getitem__, frozenset({0, 1, 2}))
        times = SequenceTimes(self.clock(), 10)
        log = ResultLog(DetailOptions(logprobs, top_count))
        sequence = Sequence(0, next(self._keys), log, decoder, times)
        self.outputs.add(sequence, AddSequence(sequence.key, (1,) * 10, SamplingParams(), 100))
        return sequence

    def step(self, tokens: dict[Sequence, int] | None = None, seconds: float = 0.5, **more: Any) -> None:
        """A step of some seconds that brought these tokens."""
        tokens = tokens or {}
        keys = [sequence.key for sequence in tokens]
        self.clock.advance(seconds)
        self.outputs.process(
            StepOutput(keys=keys, token_ids=list(tokens.values()), step_time=seconds, batch_size=1, **more)
        )


def text(sequence: Sequence) -> str:
    return sequence.log.elements(0, len(sequence.log)).text


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_tokens_go_to_the_logs_of_their_sequences(rig: Rig) -> None:
    first, second = rig.accept(), rig.accept()
    rig.step({first: 50, second: 60})
    rig.step({second: 61})
    assert first.log.ids.tolist() == [50]
    assert second.log.ids.tolist() == [60, 61]


def test_text_is_held_back_until_a_character_is_whole(rig: Rig) -> None:
    sequence = rig.accept()
    for token_id in EMOJI[:-1]:
        rig.step({sequence: token_id})
        assert text(sequence) == ""
    rig.step({sequence: EMOJI[-1]})
    assert text(sequence) == "👍"
    assert sequence.log.elements(len(EMOJI) - 1, len(EMOJI)).text == "👍"


def test_bc006_text_held_back_is_in_the_end_record(rig: Rig) -> None:
    sequence = rig.accept()
    rig.step({sequence: BYTES.encode("o").ids[0]})
    rig.step({sequence: EMOJI[0]}, ended=[Ended(sequence.key, FinishReason.MAX_LENGTH)])
    assert text(sequence) == "o"
    assert sequence.log.end is not None
    assert (sequence.log.end.text, sequence.log.end.status) == ("\ufffd", GenerateStatus.FINISHED)


@pytest.mark.parametrize("reason", [FinishReason.EOS, FinishReason.MAX_LENGTH, FinishReason.NO_TOKEN_LEFT])
def test_bc010_a_token_that_comes_with_the_end_is_in_the_log(rig: Rig, reason: FinishReason) -> None:
    sequence = rig.accept()
    rig.step({sequence: 70}, ended=[Ended(sequence.key, reason)])
    result = sequence.log.read(0)
    assert result is not None
    assert result.elements is not None
    assert result.elements.token_ids == [70]
    assert result.end is not None
    assert (result.end.finish_reason, result.end.position) == (reason, 1)
    assert result.end.checksum == result.elements.checksum_after
    assert result.end.stat.generated_token_length == 1


def test_a_special_token_is_in_the_ids_and_not_in_the_text(rig: Rig) -> None:
    sequence = rig.accept()
    rig.step({sequence: 2}, ended=[Ended(sequence.key, FinishReason.EOS)])
    assert sequence.log.ids.tolist() == [2]
    assert text(sequence) == ""


def test_output_for_an_ended_or_unknown_key_is_dropped(rig: Rig) -> None:
    sequence, other = rig.accept(), rig.accept()
    assert rig.outputs.finish(sequence, FinishReason.STOPPED)
    rig.step(
        {sequence: 50, other: 51},
        scheduled=[Scheduled(sequence.key, 0), Scheduled(99, 0)],
        preempted=[sequence.key, 99],
        ended=[Ended(sequence.key, FinishReason.EOS), Ended(99, FinishReason.EOS)],
    )
    assert len(sequence.log) == 0
    assert sequence.log.end is not None
    assert sequence.log.end.finish_reason is FinishReason.STOPPED
    assert other.log.ids.tolist() == [51]


def test_a_sequence_ends_once(rig: Rig) -> None:
    sequence = rig.accept()
    rig.step(ended=[Ended(sequence.key, FinishReason.EOS)])
    record = sequence.log.end
    assert not rig.outputs.finish(sequence, FinishReason.STOPPED)
    assert sequence.log.end is record


def test_a_fault_in_one_sequence_touches_no_other(rig: Rig) -> None:
    bad, good = rig.accept(), rig.accept()
    rig.step({good: 50}, ended=[Ended(bad.key, FinishReason.ERROR, "logits are not finite")])
    assert bad.log.end is not None
    assert bad.log.end.status is GenerateStatus.INTERNAL_ERROR
    assert bad.log.end.error is not None
    assert bad.log.end.error.message == "logits are not finite"
    assert good.log.end is None
    assert good.log.ids.tolist() == [50]


def test_logprobs_go_to_the_rows_that_asked(rig: Rig) -> None:
    asked, silent = rig.accept(logprobs=True), rig.accept()
    rig.step({silent: 50, asked: 51}, logprobs=[float("nan"), -0.5])
    assert asked.log.elements(0, 1).token_logprobs == [-0.5]
    assert silent.log.elements(0, 1).token_logprobs is None


def test_times_of_a_prompt_that_one_step_computes(rig: Rig) -> None:
    """The step began when its tokens were put into it, and the first token was there when it ended."""
    sequence = rig.accept()
    arrival = rig.clock()
    rig.clock.advance(2)
    rig.step({sequence: 50}, seconds=0.5, scheduled=[Scheduled(sequence.key, 4)])
    stat = sequence.stat
    assert (stat.arrival_time, stat.scheduled_time, stat.first_token_time) == (arrival, arrival + 2, arrival + 2.5)
    assert (stat.time_in_queue, stat.time_to_first_token) == (2, 2.5)
    assert (stat.context_cached_length, stat.context_tps) == (4, 6 / 0.5)


def test_times_of_a_prompt_in_chunks(rig: Rig) -> None:
    sequence = rig.accept()
    rig.step(seconds=1, scheduled=[Scheduled(sequence.key, 0)])
    rig.step(seconds=1)
    assert sequence.stat.first_token_time is None
    rig.step({sequence: 50}, seconds=1)
    assert (sequence.stat.time_in_queue, sequence.stat.time_to_first_token) == (0, 3)
    assert sequence.stat.context_tps == 10 / 3


def test_a_request_is_not_scheduled_before_it_arrived(rig: Rig) -> None:
    """Clocks of two processes may differ by a little."""
    sequence = rig.accept()
    rig.outputs.process(StepOutput(scheduled=[Scheduled(sequence.key, 0)], step_time=0.5, batch_size=1))
    assert sequence.stat.scheduled_time == sequence.stat.arrival_time


def test_prefix_cache_use_is_known_with_the_first_step(rig: Rig) -> None:
    sequence = rig.accept()
    assert sequence.view().prefix is None
    rig.step(scheduled=[Scheduled(sequence.key, 8, host_tokens=2)])
    prefix = sequence.view().prefix
    assert prefix is not None
    assert (prefix.prefix_cache_len, prefix.prefix_len_gpu, prefix.prefix_len_cpu) == (8, 6, 2)


def test_preemptions_are_counted(rig: Rig) -> None:
    sequence = rig.accept()
    rig.step(preempted=[sequence.key])
    rig.step({sequence: 5}, preempted=[sequence.key])
    assert sequence.stat.preemptions == 2


def test_an_ended_sequence_s_statistics_stand_still(rig: Rig) -> None:
    sequence = rig.accept()
    rig.step({sequence: 50}, ended=[Ended(sequence.key, FinishReason.EOS)])
    stat = sequence.stat
    rig.clock.advance(100)
    assert sequence.stat == stat
    assert stat.finished_time == stat.last_token_time
    assert sequence.log.end is not None
    assert sequence.log.end.stat == stat


def test_waiting_and_live_are_counted(rig: Rig) -> None:
    first, second = rig.accept(), rig.accept()
    assert (rig.outputs.live, rig.outputs.waiting) == (2, 2)
    rig.step(scheduled=[Scheduled(first.key, 0)])
    assert (rig.outputs.live, rig.outputs.waiting) == (2, 1)
    rig.outputs.finish(second, FinishReason.STOPPED)
    assert (rig.outputs.live, rig.outputs.waiting) == (1, 0)
    assert rig.outputs.finish_all(FinishReason.DRAINED) == [first.key]
    assert (rig.outputs.live, rig.outputs.waiting) == (0, 0)


async def test_idle_is_when_all_have_ended(rig: Rig) -> None:
    await rig.outputs.wait_idle()
    first, second = rig.accept(), rig.accept()
    idle = asyncio.ensure_future(rig.outputs.wait_idle())
    rig.step(ended=[Ended(first.key, FinishReason.EOS)])
    await settle()
    assert not idle.done()
    rig.outputs.finish(second, FinishReason.STOPPED)
    await idle


async def test_readers_are_woken_once_a_step(rig: Rig) -> None:
    sequence = rig.accept()
    reader = asyncio.ensure_future(sequence.log.wait(0))
    await settle()
    rig.step()
    await settle()
    assert not reader.done()
    rig.step({sequence: 50})
    await reader


def test_the_mean_duration_follows_the_newest_requests(rig: Rig) -> None:
    for _ in range(64):
        sequence = rig.accept()
        rig.clock.advance(4)
        rig.outputs.finish(sequence, FinishReason.STOPPED)
    assert rig.outputs.recent.mean_duration == pytest.approx(4, rel=0.01)


def test_bc058_most_likely_ids_go_with_their_tokens(rig: Rig) -> None:
    plain, two, three = (
        rig.accept(),
        rig.accept(logprobs=True, top_count=2),
        rig.accept(logprobs=True, top_count=3),
    )
    tops = {"top_counts": [0, 2, 3], "top_ids": [7, 8, 1, 2, 3], "top_logprobs": [-0.5, -1.0, -1.0, -2.0, -3.0]}
    rig.step({plain: 50, two: 51, three: 52}, logprobs=[math.nan, -0.5, -4.0], **tops)
    rig.step({three: 53, two: 54}, logprobs=[-1.0, -1.0], top_counts=[3, 2], top_ids=[4, 5, 6, 9, 10],
               top_logprobs=[-1.5] * 5)  # fmt: skip
    assert plain.log.elements(0, 1).top_logprobs is None
    assert two.log.elements(0, 2).top_logprobs == TopLogprobs(2, [7, 8, 9, 10], [-0.5, -1.0, -1.5, -1.5])
    assert three.log.elements(1, 2).top_logprobs == TopLogprobs(3, [4, 5, 6], [-1.5] * 3)
