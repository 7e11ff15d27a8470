"""Policy RETURN: whoever would be put back for lack of blocks ends instead."""

from __future__ import annotations

from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.result_types import FinishReason
from unit.core.bench import Bench
from unit.core.conftest import MakeBench
from unit.core.simulated import expected

RETURN = InterruptPolicy.RETURN
RESUME = InterruptPolicy.RESUME


def prompt(seed: int) -> list[int]:
    return [(seed * 37 + i) % 1000 for i in range(8)]


def interrupted(bench: Bench) -> list[int]:
    """Keys in the order of their interruption."""
    ended = [item for output in bench.outputs for item in output.ended]
    return [item.key for item in ended if item.reason is FinishReason.INTERRUPTED]


def test_it_ends_and_keeps_the_tokens_that_it_has(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=24, max_length=32)
    keys = [bench.add(prompt(i), 24, interrupt_policy=RETURN) for i in range(8)]
    bench.run()
    ended = interrupted(bench)
    assert ended, "the pool was large enough: nothing was tested"
    assert len(ended) == len(set(ended)) < len(keys)
    assert not bench.preempted
    for key in keys:
        assert bench.tokens[key] == expected(bench.requests[key])[: len(bench.tokens[key])]
        assert bench.is_complete(key) != (key in ended)
    bench.assert_idle()


def test_the_last_in_rank_gives_way_whatever_its_policy(make_bench: MakeBench) -> None:
    """Two that return and two that resume: the ones last in rank are hit, each as it wished."""
    for policies in ([RESUME, RESUME, RETURN, RETURN], [RETURN, RETURN, RESUME, RESUME]):
        bench = make_bench(num_blocks=16)
        keys = [bench.add(prompt(i), 24, interrupt_policy=policy) for i, policy in enumerate(policies)]
        bench.run()
        hit = set(interrupted(bench)) | set(bench.preempted)
        assert hit
        assert hit <= set(keys[2:])
        assert bool(interrupted(bench)) == (policies[3] is RETURN)
        assert bench.is_complete(keys[0])
        assert bench.is_complete(keys[1])
        bench.assert_idle()


def test_priority_counts_before_arrival(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16)
    low = bench.add(prompt(0), 24, interrupt_policy=RETURN)
    others = [bench.add(prompt(i), 24, interrupt_policy=RETURN, priority=1) for i in range(1, 4)]
    bench.run()
    assert interrupted(bench)[0] == low
    assert bench.is_complete(others[0])


def test_alone_a_request_is_never_interrupted(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=16, max_length=64)
    key = bench.add(prompt(1), 56, interrupt_policy=RETURN)
    bench.run()
    assert bench.is_complete(key)


def test_its_end_is_told_with_the_step_that_it_made_room_for(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=8, max_length=28)
    first = bench.add(prompt(1), 20, interrupt_policy=RETURN)
    second = bench.add(prompt(2), 20, interrupt_policy=RETURN)
    bench.run()
    assert interrupted(bench) == [second]
    (output,) = [each for each in bench.outputs if any(item.key == second for item in each.ended)]
    assert output.keys == [first]
