"""How sequences end: in the core, on command, and by failures that are theirs alone."""

from __future__ import annotations

import pytest
from headrace_engine.core.link import LinkClosed
from headrace_engine.ipc.commands import Ping, Shutdown
from headrace_engine.ipc.messages import Pong
from headrace_engine.ipc.step_output import Ended
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import SamplingParams
from support.core.rig import Rig
from support.core.simulated import expected
from unit.core.conftest import MakeRig


def ids_of(rig: Rig, prompt: list[int], count: int) -> list[int]:
    """What a prompt gives without any end."""
    key = rig.add(prompt, count)
    return expected(rig.requests[key])


def test_max_new_ends_with_its_last_token_in_the_same_output(make_rig: MakeRig) -> None:
    rig = make_rig()
    key = rig.add([1, 2, 3], 5)
    rig.run()
    assert rig.ended[key] == Ended(key, FinishReason.MAX_LENGTH)
    assert rig.outputs[-1].keys == [key]
    assert rig.outputs[-1].ended == [rig.ended[key]]
    rig.assert_all_complete()


def test_any_eos_id_ends_and_is_among_the_ids(make_rig: MakeRig) -> None:
    rig = make_rig()
    ids = ids_of(rig, [1, 2, 3], 10)
    key = rig.add([1, 2, 3], 10, eos_ids=(9999, ids[4]))
    rig.run()
    assert rig.ended[key].reason is FinishReason.EOS
    assert rig.tokens[key] == ids[:5]


def test_eos_wins_over_max_length_on_the_same_token(make_rig: MakeRig) -> None:
    rig = make_rig()
    ids = ids_of(rig, [1, 2, 3], 5)
    key = rig.add([1, 2, 3], 5, eos_ids=(ids[4],))
    rig.run()
    assert rig.ended[key].reason is FinishReason.EOS


def test_a_prompt_that_ends_with_eos_does_not_end_the_sequence(make_rig: MakeRig) -> None:
    rig = make_rig()
    key = rig.add([1, 2, 3], 5, eos_ids=(3,))
    rig.run()
    assert rig.tokens[key] == expected(rig.requests[key])
    assert len(rig.tokens[key]) == 5


def test_eos_ids_are_masked_before_min_new(make_rig: MakeRig) -> None:
    rig = make_rig()
    ids = ids_of(rig, [1, 2, 3], 10)
    key = rig.add([1, 2, 3], 10, min_new=3, eos_ids=tuple(ids[:3]))
    rig.run()
    assert not set(rig.tokens[key][:3]) & set(ids[:3])
    assert rig.tokens[key] == expected(rig.requests[key])


def test_a_stop_id_ends_without_another_step(make_rig: MakeRig) -> None:
    rig = make_rig()
    ids = ids_of(rig, [1, 2, 3], 10)
    key = rig.add([1, 2, 3], 10, stop_ids=(9999, ids[4]), eos_ids=(ids[4],))
    rig.run()
    assert rig.ended[key].reason is FinishReason.STOP_WORD
    assert rig.tokens[key] == ids[:5]


def test_bc019_a_stop_id_before_min_new_tokens_ends_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    ids = ids_of(rig, [1, 2, 3], 10)
    early = rig.add([1, 2, 3], 10, min_new=5, stop_ids=tuple(ids[:5]))
    first = rig.add([1, 2, 3], 10, min_new=5, stop_ids=(ids[5],))
    rig.run()
    assert rig.tokens[early] == ids
    assert rig.ended[early].reason is FinishReason.MAX_LENGTH
    assert rig.tokens[first] == ids[:6]


def test_min_new_counts_what_was_generated_before(make_rig: MakeRig) -> None:
    rig = make_rig()
    ids = ids_of(rig, [1, 2, 3], 10)
    key = rig.add([1, 2, 3], 10, min_new=3, eos_ids=(ids[3],), generated=tuple(ids[:3]))
    rig.run()
    assert rig.tokens[key] == ids[:4]
    assert rig.ended[key].reason is FinishReason.EOS


def test_no_token_left_ends_without_a_token(make_rig: MakeRig) -> None:
    rig = make_rig()
    key = rig.add([1, 2, 3], 10, min_new=1, eos_ids=tuple(range(1000)))
    rig.run()
    assert rig.ended[key].reason is FinishReason.NO_TOKEN_LEFT
    assert rig.tokens[key] == []


@pytest.mark.parametrize(("extra", "reason"), [({}, FinishReason.MAX_LENGTH), ({"eos": True}, FinishReason.EOS)])
def test_what_was_complete_before_ends_without_a_step(
    make_rig: MakeRig, extra: dict[str, bool], reason: FinishReason
) -> None:
    """The last token of a lost engine was delivered, its end was not."""
    rig = make_rig()
    generated = (7, 8, 9)
    eos_ids, max_new = ((9,), 20) if extra else ((), 3)
    key = rig.add([1, 2, 3], max_new, generated=generated, eos_ids=eos_ids)
    rig.run()
    assert rig.ended[key].reason is reason
    assert rig.runner.batches == []


@pytest.mark.parametrize(
    ("prompt", "max_new", "generated", "words"),
    [
        ([], 3, (), "the prompt is empty"),
        ([1] * 60, 5, (), "are 65 tokens; max_length is 64"),
        ([1] * 60, 1, (1,) * 5, "are 65 tokens; max_length is 64"),
    ],
)
def test_what_can_never_be_computed_is_an_error_of_that_sequence(
    make_rig: MakeRig, prompt: list[int], max_new: int, generated: tuple[int, ...], words: str
) -> None:
    rig = make_rig()
    wrong = rig.add(prompt, max_new, generated=generated)
    right = rig.add([1] * 63, 1)
    rig.run()
    assert rig.ended[wrong].reason is FinishReason.ERROR
    assert words in rig.ended[wrong].error
    assert rig.is_complete(right)


def test_bc087_what_ends_while_it_waits_is_never_computed(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=2)
    for i in range(2):
        rig.add([i], 10)
    rig.step()
    waiting = [rig.add([2500 + i], 10) for i in range(20)]
    rig.step()
    for key in waiting:
        rig.end(key)
    live = rig.add([2700], 10)
    while rig.tokens[live] == []:
        rig.step()
    assert 2700 in rig.runner.seen
    assert not rig.runner.seen & set(range(2500, 2520))
    assert not set(waiting) & set(rig.ended)
    rig.run()
    assert rig.is_complete(live)


@pytest.mark.parametrize("at", range(19))
def test_bc090_a_stop_at_any_step_ends_once_and_frees_all(make_rig: MakeRig, at: int) -> None:
    """At each of the steps of 16 tokens in chunks, and after the last."""
    rig = make_rig(max_prefill_tokens=4)
    stopped, other = rig.add([1, 2, 3, 4, 5], 16), rig.add([9, 8], 16)
    rig.steps(at)
    rig.end(stopped)
    rig.end(stopped)
    before = list(rig.tokens[stopped])
    rig.run()
    assert rig.tokens[stopped] == before
    assert (stopped in rig.ended) == (len(before) == 16)
    assert rig.is_complete(other)
    assert rig.stat.pool.blocks_used == 0


def test_bc101_ending_unknown_and_repeated_keys_changes_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    key = rig.add([1, 2, 3], 3)
    rig.end(12345)
    rig.run()
    for other in (key, key, 777):
        rig.end(other)
    rig.run()
    assert rig.is_complete(key)


def test_gauges_are_sent_when_the_last_sequence_is_stopped(make_rig: MakeRig) -> None:
    rig = make_rig()
    key = rig.add([1, 2, 3], 30)
    rig.steps(3)
    assert rig.stat.running == 1
    rig.end(key)
    rig.run()
    assert (rig.stat.running, rig.stat.pool.blocks_used) == (0, 0)


def test_pings_are_answered_between_steps_and_at_rest(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.link.commands.append(Ping(1))
    rig.core.step()
    assert rig.link.messages == [Pong(1)]
    rig.link.messages.clear()
    rig.add([1], 3)
    rig.link.commands.append(Ping(2))
    rig.core.step()
    assert rig.link.messages[0] == Pong(2)
    rig.link.messages.pop(0)
    rig.run()


def test_shutdown_ends_the_loop_at_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add([1], 30)
    rig.steps(2)
    rig.link.commands.append(Shutdown())
    rig.core.serve()
    assert len(rig.runner.batches) == 2


def test_a_core_whose_front_half_is_gone_stops(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add([1], 30, sampling=SamplingParams(seed=1))
    rig.steps(2)
    rig.link.closed = True
    with pytest.raises(LinkClosed):
        rig.core.serve()
    rig.link.closed = False
