"""How sequences end: in the core, on command, and by failures that are theirs alone."""

from __future__ import annotations

import pytest
from headrace_engine.commands import Ping, Shutdown
from headrace_engine.core.executor import StepFailed
from headrace_engine.core.link import LinkClosed
from headrace_engine.core.runner import SequenceStep
from headrace_engine.generation_config import SamplingParams
from headrace_engine.messages import Ended, Pong
from headrace_engine.result_types import FinishReason
from unit.core.bench import Bench
from unit.core.conftest import MakeBench
from unit.core.simulated import expected


def ids_of(bench: Bench, prompt: list[int], count: int) -> list[int]:
    """What a prompt gives without any end."""
    key = bench.add(prompt, count)
    return expected(bench.requests[key])


def test_max_new_ends_with_its_last_token_in_the_same_output(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.add([1, 2, 3], 5)
    bench.run()
    assert bench.ended[key] == Ended(key, FinishReason.MAX_LENGTH)
    assert bench.outputs[-1].keys == [key]
    assert bench.outputs[-1].ended == [bench.ended[key]]
    bench.assert_all_complete()


def test_any_eos_id_ends_and_is_among_the_ids(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = ids_of(bench, [1, 2, 3], 10)
    key = bench.add([1, 2, 3], 10, eos_ids=(9999, ids[4]))
    bench.run()
    assert bench.ended[key].reason is FinishReason.EOS
    assert bench.tokens[key] == ids[:5]


def test_eos_wins_over_max_length_on_the_same_token(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = ids_of(bench, [1, 2, 3], 5)
    key = bench.add([1, 2, 3], 5, eos_ids=(ids[4],))
    bench.run()
    assert bench.ended[key].reason is FinishReason.EOS


def test_a_prompt_that_ends_with_eos_does_not_end_the_sequence(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.add([1, 2, 3], 5, eos_ids=(3,))
    bench.run()
    assert bench.tokens[key] == expected(bench.requests[key])
    assert len(bench.tokens[key]) == 5


def test_eos_ids_are_masked_before_min_new(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = ids_of(bench, [1, 2, 3], 10)
    key = bench.add([1, 2, 3], 10, min_new=3, eos_ids=tuple(ids[:3]))
    bench.run()
    assert not set(bench.tokens[key][:3]) & set(ids[:3])
    assert bench.tokens[key] == expected(bench.requests[key])


def test_a_stop_id_ends_without_another_step(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = ids_of(bench, [1, 2, 3], 10)
    key = bench.add([1, 2, 3], 10, stop_ids=(9999, ids[4]), eos_ids=(ids[4],))
    bench.run()
    assert bench.ended[key].reason is FinishReason.STOP_WORD
    assert bench.tokens[key] == ids[:5]


def test_bc019_a_stop_id_before_min_new_is_drawn_and_ends_nothing(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = ids_of(bench, [1, 2, 3], 10)
    early = bench.add([1, 2, 3], 10, min_new=5, stop_ids=tuple(ids[:5]))
    first = bench.add([1, 2, 3], 10, min_new=5, stop_ids=(ids[5],))
    bench.run()
    assert bench.tokens[early] == ids
    assert bench.ended[early].reason is FinishReason.MAX_LENGTH
    assert bench.tokens[first] == ids[:6]


def test_min_new_counts_what_was_generated_before(make_bench: MakeBench) -> None:
    bench = make_bench()
    ids = ids_of(bench, [1, 2, 3], 10)
    key = bench.add([1, 2, 3], 10, min_new=3, eos_ids=(ids[3],), generated=tuple(ids[:3]))
    bench.run()
    assert bench.tokens[key] == ids[:4]
    assert bench.ended[key].reason is FinishReason.EOS


def test_no_token_left_ends_without_a_token(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.add([1, 2, 3], 10, min_new=1, eos_ids=tuple(range(1000)))
    bench.run()
    assert bench.ended[key].reason is FinishReason.NO_TOKEN_LEFT
    assert bench.tokens[key] == []


@pytest.mark.parametrize(("extra", "reason"), [({}, FinishReason.MAX_LENGTH), ({"eos": True}, FinishReason.EOS)])
def test_what_was_complete_before_ends_without_a_step(
    make_bench: MakeBench, extra: dict[str, bool], reason: FinishReason
) -> None:
    """The last token of a lost engine was delivered, its end was not."""
    bench = make_bench()
    generated = (7, 8, 9)
    eos_ids, max_new = ((9,), 20) if extra else ((), 3)
    key = bench.add([1, 2, 3], max_new, generated=generated, eos_ids=eos_ids)
    bench.run()
    assert bench.ended[key].reason is reason
    assert bench.runner.batches == []


@pytest.mark.parametrize(
    ("prompt", "max_new", "generated", "words"),
    [
        ([], 3, (), "the prompt is empty"),
        ([1] * 60, 5, (), "make 65 tokens, max_length is 64"),
        ([1] * 60, 1, (1,) * 5, "make 65 tokens, max_length is 64"),
    ],
)
def test_what_can_never_be_computed_is_an_error_of_that_sequence(
    make_bench: MakeBench, prompt: list[int], max_new: int, generated: tuple[int, ...], words: str
) -> None:
    bench = make_bench()
    wrong = bench.add(prompt, max_new, generated=generated)
    right = bench.add([1] * 63, 1)
    bench.run()
    assert bench.ended[wrong].reason is FinishReason.ERROR
    assert words in bench.ended[wrong].error
    assert bench.is_complete(right)


def test_bc087_what_ends_while_it_waits_is_never_computed(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch=2)
    for i in range(2):
        bench.add([i], 10)
    bench.step()
    waiting = [bench.add([2500 + i], 10) for i in range(20)]
    bench.step()
    for key in waiting:
        bench.end(key)
    live = bench.add([2700], 10)
    while bench.tokens[live] == []:
        bench.step()
    assert 2700 in bench.runner.seen
    assert not bench.runner.seen & set(range(2500, 2520))
    assert not set(waiting) & set(bench.ended)
    bench.run()
    assert bench.is_complete(live)


@pytest.mark.parametrize("at", range(19))
def test_bc090_stopping_at_any_step_ends_once_and_frees_everything(make_bench: MakeBench, at: int) -> None:
    """At each of the steps of 16 tokens in chunks, and after the last."""
    bench = make_bench(max_prefill_tokens=4)
    stopped, other = bench.add([1, 2, 3, 4, 5], 16), bench.add([9, 8], 16)
    bench.steps(at)
    bench.end(stopped)
    bench.end(stopped)
    before = list(bench.tokens[stopped])
    bench.run()
    assert bench.tokens[stopped] == before
    assert (stopped in bench.ended) == (len(before) == 16)
    assert bench.is_complete(other)
    assert bench.stat.blocks_used == 0


def test_bc101_ending_unknown_and_repeated_keys_changes_nothing(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.add([1, 2, 3], 3)
    bench.end(12345)
    bench.run()
    for other in (key, key, 777):
        bench.end(other)
    bench.run()
    assert bench.is_complete(key)


def test_gauges_are_told_when_the_last_sequence_is_ended_by_command(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.add([1, 2, 3], 30)
    bench.steps(3)
    assert bench.stat.running == 1
    bench.end(key)
    bench.run()
    assert (bench.stat.running, bench.stat.blocks_used) == (0, 0)


def test_a_row_that_is_not_finite_ends_alone(make_bench: MakeBench) -> None:
    bench = make_bench()
    keys = [bench.add([i, i + 1, i + 2], 6) for i in (10, 20, 30)]
    bench.runner.spoils = lambda step: 20 in step.token_ids
    bench.run()
    assert bench.ended[keys[1]] == Ended(keys[1], FinishReason.ERROR, "logits are not finite")
    assert bench.is_complete(keys[0])
    assert bench.is_complete(keys[2])


def test_bc105_spoilt_keys_and_values_are_not_found_by_later_requests(make_bench: MakeBench) -> None:
    """Earlier chunks were in the cache before the fault showed; the whole sequence is taken out of it."""
    bench = make_bench(max_prefill_tokens=8)
    spoilt = [True]
    bench.runner.spoils = lambda step: spoilt[0] and step.start == 0
    first = bench.add(list(range(30)), 6)
    bench.run()
    assert bench.ended[first].reason is FinishReason.ERROR
    spoilt[0] = False
    later = [bench.add(list(range(30)), 6) for _ in range(3)]
    bench.run()
    assert all(bench.is_complete(key) for key in later)
    assert bench.cached[later[0]] == 0


@pytest.mark.parametrize("where", ["prefill", "chunk", "generation"])
def test_bc105_an_exception_costs_the_sequence_that_raises_it_and_no_other(make_bench: MakeBench, where: str) -> None:
    bench = make_bench(max_prefill_tokens=16)
    keys = [bench.add([100 * i + j for j in range(20)], 6) for i in range(1, 4)]
    start = {"prefill": 0, "chunk": 16, "generation": 22}[where]

    def raises(step: SequenceStep) -> bool:
        covers = step.start <= start < step.start + len(step.token_ids)
        return covers and (200 in step.token_ids or bench.runner._pool.get((step.blocks[0], 0)) == (0, 200))

    bench.runner.raises = raises
    bench.run()
    assert bench.ended[keys[1]].reason is FinishReason.ERROR
    assert "RuntimeError: simulated fault" in bench.ended[keys[1]].error
    assert bench.is_complete(keys[0])
    assert bench.is_complete(keys[2])
    bench.runner.raises = lambda step: False
    again = [bench.add([100 * i + j for j in range(20)], 6) for i in range(1, 4)]
    bench.run()
    assert all(bench.is_complete(key) for key in again)


def test_an_exception_that_does_not_come_back_costs_nobody(make_bench: MakeBench) -> None:
    bench = make_bench()
    faults = iter([True])
    bench.runner.raises = lambda step: next(faults, False)
    for i in range(3):
        bench.add([i, i], 6)
    bench.run()
    bench.assert_all_complete()


def test_a_lonely_sequence_that_raises_ends_and_the_core_goes_on(make_bench: MakeBench) -> None:
    """A step of a harmless token still works, so the device is not to blame."""
    bench = make_bench()
    bench.runner.raises = lambda step: 13 in step.token_ids
    wrong = bench.add([13], 6)
    bench.run()
    right = bench.add([14], 6)
    bench.run()
    assert bench.ended[wrong].reason is FinishReason.ERROR
    assert bench.is_complete(right)


def test_the_core_fails_where_nothing_can_be_computed_any_more(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add([1, 2], 6)
    bench.add([3, 4], 6)
    bench.steps(2)
    bench.runner.raises = lambda step: True
    with pytest.raises(StepFailed, match="RuntimeError: simulated fault"):
        bench.core.step()


def test_a_key_that_is_in_use_is_a_defect(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.add([1], 30)
    bench.link.commands.append(bench.requests[key])
    with pytest.raises(ValueError, match=f"key {key} is in use"):
        bench.core.step()


def test_pings_are_answered_between_steps_and_at_rest(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.link.commands.append(Ping(1))
    bench.core.step()
    assert bench.link.messages == [Pong(1)]
    bench.link.messages.clear()
    bench.add([1], 3)
    bench.link.commands.append(Ping(2))
    bench.core.step()
    assert bench.link.messages[0] == Pong(2)
    bench.link.messages.pop(0)
    bench.run()


def test_shutdown_ends_the_loop_at_once(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add([1], 30)
    bench.steps(2)
    bench.link.commands.append(Shutdown())
    bench.core.serve()
    assert len(bench.runner.batches) == 2


def test_a_core_whose_front_half_is_gone_stops(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add([1], 30, sampling=SamplingParams(seed=1))
    bench.steps(2)
    bench.link.closed = True
    with pytest.raises(LinkClosed):
        bench.core.serve()
    bench.link.closed = False
