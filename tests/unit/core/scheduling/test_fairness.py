"""Who runs first, who gives way, and that everyone has a turn."""

from __future__ import annotations

import pytest
from headrace_engine.block_keys import Scope
from headrace_engine.core.kv.block_pool import BlockPool
from headrace_engine.core.scheduling.schedule import Limits
from headrace_engine.core.scheduling.scheduler import Scheduler
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.core.scheduling.waiting import WaitingQueue
from headrace_engine.ipc.commands import AddSequence
from support.core.rig import Rig
from support.core.simulated import GREEDY
from unit.core.conftest import MakeRig

B = 4


def started(rig: Rig) -> list[int]:
    """Keys in the order in which they were first in a step."""
    return [item.key for output in rig.outputs for item in output.scheduled]


def unlike(number: int, length: int) -> list[int]:
    """A prompt that shares no prefix with one of another number."""
    return [number, *range(1, length)]


def test_first_come_first_served_and_higher_priority_before(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=1)
    for i, priority in enumerate([0, 0, 5, -1, 5, 0]):
        rig.add(unlike(i, 3), 2, priority=priority)
    rig.run()
    assert started(rig) == [3, 5, 1, 2, 6, 4]


def test_generation_is_never_held_up_by_prompts(make_rig: MakeRig) -> None:
    """A flood of long prompts: the running sequence has a token from every step."""
    rig = make_rig(max_prefill_tokens=6)
    key = rig.add([1], 20)
    rig.step()
    for i in range(12):
        rig.add(unlike(i, 40), 4)
    for count in range(2, 21):
        rig.step()
        assert len(rig.tokens[key]) == count
    rig.run()
    rig.assert_all_complete()


def test_the_youngest_of_the_lowest_priority_gives_way(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16)
    low_old, low_young = rig.add(unlike(1, 9), 20, priority=0), rig.add(unlike(2, 9), 20, priority=0)
    high = rig.add(unlike(3, 9), 20, priority=1)
    rig.run()
    assert rig.preempted[0] == low_young
    assert high not in rig.preempted
    assert rig.preempted.count(low_old) <= rig.preempted.count(low_young)
    rig.assert_all_complete()


def test_nobody_gives_way_to_a_lower_priority(make_rig: MakeRig) -> None:
    """Even when the low one came first, it is the one that is put back."""
    rig = make_rig(num_blocks=16)
    low = rig.add(unlike(1, 9), 40, priority=0)
    rig.steps(4)
    high = [rig.add(unlike(i, 9), 16, priority=9) for i in (2, 3)]
    rig.run()
    assert set(rig.preempted) == {low}
    assert not set(high) & set(rig.preempted)
    rig.assert_all_complete()


def test_a_preempted_sequence_restarts_first_of_its_priority(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16, max_batch=4)
    for i in range(3):
        rig.add(unlike(i, 12), 24)
    rig.steps(2)
    assert rig.stat.running == 3
    later = [rig.add(unlike(10 + i, 4), 2) for i in range(3)]
    while not rig.preempted:
        rig.step()
    known = len(started(rig))
    victim = rig.preempted[0]
    length = len(rig.tokens[victim])
    while len(rig.tokens[victim]) == length:
        rig.step()
    assert len(started(rig)) == known, "a new sequence started while one that gave way was waiting"
    rig.run()
    assert set(later) <= set(started(rig))
    rig.assert_all_complete()


def test_admission_leaves_running_sequences_a_block_to_grow(make_rig: MakeRig) -> None:
    """Without that reserve the new sequence and the running ones would push one another out at once."""
    rig = make_rig(num_blocks=16)
    for i in range(3):
        rig.add(unlike(i, 16), 5)
    rig.run()
    assert rig.preempted == []
    rig.assert_all_complete()


def test_bc095_small_ones_pass_a_large_one_that_does_not_fit(make_rig: MakeRig) -> None:
    """The pool is used to 60 %, the first that waits needs 80 %, ten tiny ones behind it finish meanwhile."""
    rig = make_rig(num_blocks=20, max_length=80, max_prefill_tokens=100)
    running = rig.add(unlike(1, 44), 20)
    rig.step()
    large = rig.add(unlike(2, 64), 4)
    tiny = [rig.add(unlike(10 + i, 3), 2) for i in range(10)]
    while running not in rig.ended:
        rig.step()
    assert set(tiny) <= set(rig.ended)
    assert large not in started(rig)
    rig.run()
    rig.assert_all_complete()


def test_bc095_a_large_one_starts_under_a_stream_of_small_ones(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=20, max_length=80)
    for i in range(4):
        rig.add(unlike(i, 12), 8)
    rig.step()
    large = rig.add(unlike(50, 64), 4)
    overtaken = 0
    for i in range(400):
        rig.add(unlike(100 + i, 8), 6)
        rig.step()
        if large in started(rig):
            overtaken = started(rig).index(large) - 4
            break
    assert large in started(rig)
    assert 0 < overtaken <= 32 + 8
    rig.run()
    rig.assert_all_complete()


def test_long_prompts_do_not_starve_under_a_flood_of_short_ones(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=4, max_prefill_tokens=4)
    long = rig.add(unlike(1, 50), 4)
    steps = 0
    while long not in rig.ended:
        for i in range(3):
            rig.add(unlike(1000 + 10 * steps + i, 2), 3)
        rig.step()
        steps += 1
        assert steps < 200, "the long prompt does not get on"
    rig.run()
    rig.assert_all_complete()


def test_no_lower_priority_passes_one_that_does_not_fit(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16)
    rig.add(unlike(1, 30), 16)
    rig.step()
    high = rig.add(unlike(2, 50), 4, priority=1)
    low = rig.add(unlike(3, 3), 2, priority=0)
    rig.run()
    assert started(rig).index(high) < started(rig).index(low)


@pytest.mark.parametrize("length", [2, 33, 63])
def test_a_max_length_sequence_runs_alone_on_the_smallest_pool(make_rig: MakeRig, length: int) -> None:
    rig = make_rig(num_blocks=16, max_length=64, max_prefill_tokens=7)
    rig.add(unlike(1, length), 64 - length)
    rig.run()
    rig.assert_all_complete()
    assert rig.preempted == []


@pytest.mark.parametrize("max_batch", [1, 2, 8])
def test_everyone_ends_on_the_smallest_pool(make_rig: MakeRig, max_batch: int) -> None:
    rig = make_rig(num_blocks=16, max_length=64, max_prefill_tokens=5, max_batch=max_batch)
    for i in range(12):
        rig.add(unlike(i, 1 + 5 * i), 8, priority=i % 3)
    rig.run()
    rig.assert_all_complete()


def test_the_queue_orders_by_priority_preemption_and_arrival() -> None:
    queue = WaitingQueue()
    places = [(0, 1), (0, 0), (1, 0), (1, 2), (0, 3), (1, 0)]
    for arrival, (priority, preemptions) in enumerate(places):
        sequence = Sequence(AddSequence(arrival, (1,), GREEDY, 1, priority=priority), arrival)
        sequence.preemptions = preemptions
        queue.push(sequence)
    assert [sequence.key for sequence in queue] == [3, 2, 5, 0, 4, 1]


@pytest.mark.parametrize(("large", "passed"), [(2, True), (3, False)])
def test_a_step_looks_past_a_bounded_number_that_do_not_fit(large: int, passed: bool) -> None:
    """A queue of any length costs a step no more than that."""
    scheduler = Scheduler(BlockPool(20, B), Limits(max_batch=8, max_tokens=100, lookahead=2), Scope())
    scheduler.add(AddSequence(0, tuple(unlike(0, 44)), GREEDY, 20))
    scheduler.schedule()
    for key in range(1, large + 1):
        scheduler.add(AddSequence(key, tuple(unlike(key, 60)), GREEDY, 4))
    scheduler.add(AddSequence(99, (99,), GREEDY, 1))
    assert any(started.key == 99 for started in scheduler.schedule().scheduled) is passed
    scheduler.check_integrity()


def test_owners_take_turns_in_the_queue(make_rig: MakeRig) -> None:
    """One owner's flood, sent before: another waits for places in the batch, and for no more."""
    rig = make_rig(max_batch=2)
    flood = [rig.add(unlike(i, 3), 4, owner="flood") for i in range(12)]
    rig.step()
    other = [rig.add(unlike(20 + i, 3), 4, owner="other") for i in range(3)]
    rig.run()
    order = started(rig)
    assert order[:2] == flood[:2]
    assert [order.index(key) for key in other] == [3, 5, 7], "one of each two places that become free together"
    assert [key for key in order if key in flood] == flood
    rig.assert_all_complete()


def test_the_owner_with_fewest_in_the_batch_is_next(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=4)
    long = [rig.add(unlike(i, 3), 40, owner="a") for i in range(2)]
    short = [rig.add(unlike(10 + i, 3), 2, owner=owner) for i, owner in enumerate("bc")]
    rig.step()
    waiting = {owner: rig.add(unlike(20 + i, 3), 2, owner=owner) for i, owner in enumerate("abc")}
    rig.run()
    order = started(rig)
    assert set(order[:4]) == {*long, *short}
    assert order[4:] == [waiting["b"], waiting["c"], waiting["a"]]


def test_priorities_go_before_turns_of_owners(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=1)
    first = rig.add(unlike(0, 3), 2, owner="a")
    rig.step()
    high = [rig.add(unlike(1 + i, 3), 2, owner="a", priority=1) for i in range(2)]
    low = rig.add(unlike(9, 3), 2, owner="b")
    rig.run()
    assert started(rig) == [first, *high, low]
