"""Who runs first, who gives way, and that everyone has a turn."""

from __future__ import annotations

import pytest
from headrace_engine.commands import AddSequence
from headrace_engine.core.block_pool import BlockPool
from headrace_engine.core.prefix_cache import Scope
from headrace_engine.core.schedule import Limits
from headrace_engine.core.scheduler import Scheduler
from headrace_engine.core.sequence import Sequence
from headrace_engine.core.waiting import WaitingQueue
from unit.core.bench import Bench
from unit.core.conftest import MakeBench
from unit.core.simulated import GREEDY

B = 4


def started(bench: Bench) -> list[int]:
    """Keys in the order in which they were first in a step."""
    return [item.key for output in bench.outputs for item in output.scheduled]


def unlike(number: int, length: int) -> list[int]:
    """A prompt that shares no prefix with one of another number."""
    return [number, *range(1, length)]


def test_first_come_first_served_and_higher_priority_before(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch=1)
    for i, priority in enumerate([0, 0, 5, -1, 5, 0]):
        bench.add(unlike(i, 3), 2, priority=priority)
    bench.run()
    assert started(bench) == [3, 5, 1, 2, 6, 4]


def test_generation_is_never_held_up_by_prompts(make_bench: MakeBench) -> None:
    """A flood of long prompts: the running sequence has a token from every step."""
    bench = make_bench(max_prefill_tokens=6)
    key = bench.add([1], 20)
    bench.step()
    for i in range(12):
        bench.add(unlike(i, 40), 4)
    for count in range(2, 21):
        bench.step()
        assert len(bench.tokens[key]) == count
    bench.run()
    bench.assert_all_complete()


def test_the_youngest_of_the_lowest_priority_gives_way(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16)
    low_old, low_young = bench.add(unlike(1, 9), 20, priority=0), bench.add(unlike(2, 9), 20, priority=0)
    high = bench.add(unlike(3, 9), 20, priority=1)
    bench.run()
    assert bench.preempted[0] == low_young
    assert high not in bench.preempted
    assert bench.preempted.count(low_old) <= bench.preempted.count(low_young)
    bench.assert_all_complete()


def test_nobody_gives_way_to_a_lower_priority(make_bench: MakeBench) -> None:
    """Even when the low one came first, it is the one that is put back."""
    bench = make_bench(num_blocks=16)
    low = bench.add(unlike(1, 9), 40, priority=0)
    bench.steps(4)
    high = [bench.add(unlike(i, 9), 16, priority=9) for i in (2, 3)]
    bench.run()
    assert set(bench.preempted) == {low}
    assert not set(high) & set(bench.preempted)
    bench.assert_all_complete()


def test_a_preempted_sequence_is_the_first_of_its_priority_to_start_again(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16, max_batch=4)
    for i in range(3):
        bench.add(unlike(i, 12), 24)
    bench.steps(2)
    assert bench.stat.running == 3
    later = [bench.add(unlike(10 + i, 4), 2) for i in range(3)]
    while not bench.preempted:
        bench.step()
    known = len(started(bench))
    victim = bench.preempted[0]
    length = len(bench.tokens[victim])
    while len(bench.tokens[victim]) == length:
        bench.step()
    assert len(started(bench)) == known, "a new sequence started while one that gave way was waiting"
    bench.run()
    assert set(later) <= set(started(bench))
    bench.assert_all_complete()


def test_admission_leaves_running_sequences_a_block_to_grow(make_bench: MakeBench) -> None:
    """Without that reserve the new sequence and the running ones would push one another out at once."""
    bench = make_bench(num_blocks=16)
    for i in range(3):
        bench.add(unlike(i, 16), 5)
    bench.run()
    assert bench.preempted == []
    bench.assert_all_complete()


def test_bc095_small_ones_pass_a_large_one_that_does_not_fit(make_bench: MakeBench) -> None:
    """The pool is used to 60 %, the first that waits needs 80 %, ten tiny ones behind it finish meanwhile."""
    bench = make_bench(num_blocks=20, max_length=80, max_prefill_tokens=100)
    running = bench.add(unlike(1, 44), 20)
    bench.step()
    large = bench.add(unlike(2, 64), 4)
    tiny = [bench.add(unlike(10 + i, 3), 2) for i in range(10)]
    while running not in bench.ended:
        bench.step()
    assert set(tiny) <= set(bench.ended)
    assert large not in started(bench)
    bench.run()
    bench.assert_all_complete()


def test_bc095_the_large_one_starts_in_bounded_time_under_a_steady_stream(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=20, max_length=80)
    for i in range(4):
        bench.add(unlike(i, 12), 8)
    bench.step()
    large = bench.add(unlike(50, 64), 4)
    overtaken = 0
    for i in range(400):
        bench.add(unlike(100 + i, 8), 6)
        bench.step()
        if large in started(bench):
            overtaken = started(bench).index(large) - 4
            break
    assert large in started(bench)
    assert 0 < overtaken <= 32 + 8
    bench.run()
    bench.assert_all_complete()


def test_long_prompts_do_not_starve_under_a_flood_of_short_ones(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch=4, max_prefill_tokens=4)
    long = bench.add(unlike(1, 50), 4)
    steps = 0
    while long not in bench.ended:
        for i in range(3):
            bench.add(unlike(1000 + 10 * steps + i, 2), 3)
        bench.step()
        steps += 1
        assert steps < 200, "the long prompt does not get on"
    bench.run()
    bench.assert_all_complete()


def test_no_lower_priority_passes_one_that_does_not_fit(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16)
    bench.add(unlike(1, 30), 16)
    bench.step()
    high = bench.add(unlike(2, 50), 4, priority=1)
    low = bench.add(unlike(3, 3), 2, priority=0)
    bench.run()
    assert started(bench).index(high) < started(bench).index(low)


@pytest.mark.parametrize("length", [2, 33, 63])
def test_a_sequence_of_max_length_runs_alone_on_the_smallest_pool(make_bench: MakeBench, length: int) -> None:
    bench = make_bench(num_blocks=16, max_length=64, max_prefill_tokens=7)
    bench.add(unlike(1, length), 64 - length)
    bench.run()
    bench.assert_all_complete()
    assert bench.preempted == []


@pytest.mark.parametrize("max_batch", [1, 2, 8])
def test_everyone_ends_on_the_smallest_pool(make_bench: MakeBench, max_batch: int) -> None:
    bench = make_bench(num_blocks=16, max_length=64, max_prefill_tokens=5, max_batch=max_batch)
    for i in range(12):
        bench.add(unlike(i, 1 + 5 * i), 8, priority=i % 3)
    bench.run()
    bench.assert_all_complete()


def test_the_queue_serves_by_priority_then_those_that_gave_way_then_by_arrival() -> None:
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
    scheduler.check_books()
