"""Policy RETURN: whoever would be put back for lack of blocks ends instead."""

from __future__ import annotations

from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.result_types import FinishReason
from support.core.rig import Rig
from support.core.simulated import expected
from unit.core.conftest import MakeRig

RETURN = InterruptPolicy.RETURN
RESUME = InterruptPolicy.RESUME


def prompt(seed: int) -> list[int]:
    return [(seed * 37 + i) % 1000 for i in range(8)]


def interrupted(rig: Rig) -> list[int]:
    """Keys in the order of their interruption."""
    ended = [item for output in rig.outputs for item in output.ended]
    return [item.key for item in ended if item.reason is FinishReason.INTERRUPTED]


def test_it_ends_and_keeps_the_tokens_that_it_has(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=24, max_length=32)
    keys = [rig.add(prompt(i), 24, interrupt_policy=RETURN) for i in range(8)]
    rig.run()
    ended = interrupted(rig)
    assert ended, "the pool was large enough: nothing was tested"
    assert len(ended) == len(set(ended)) < len(keys)
    assert not rig.preempted
    for key in keys:
        assert rig.tokens[key] == expected(rig.requests[key])[: len(rig.tokens[key])]
        assert rig.is_complete(key) != (key in ended)
    rig.assert_idle()


def test_the_last_in_rank_gives_way_whatever_its_policy(make_rig: MakeRig) -> None:
    """Two that return and two that resume: the ones last in precedence are hit, each as it wished."""
    for policies in ([RESUME, RESUME, RETURN, RETURN], [RETURN, RETURN, RESUME, RESUME]):
        rig = make_rig(num_blocks=16)
        keys = [rig.add(prompt(i), 24, interrupt_policy=policy) for i, policy in enumerate(policies)]
        rig.run()
        hit = set(interrupted(rig)) | set(rig.preempted)
        assert hit
        assert hit <= set(keys[2:])
        assert bool(interrupted(rig)) == (policies[3] is RETURN)
        assert rig.is_complete(keys[0])
        assert rig.is_complete(keys[1])
        rig.assert_idle()


def test_priority_counts_before_arrival(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16)
    low = rig.add(prompt(0), 24, interrupt_policy=RETURN)
    others = [rig.add(prompt(i), 24, interrupt_policy=RETURN, priority=1) for i in range(1, 4)]
    rig.run()
    assert interrupted(rig)[0] == low
    assert rig.is_complete(others[0])


def test_alone_a_request_is_never_interrupted(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=16, max_length=64)
    key = rig.add(prompt(1), 56, interrupt_policy=RETURN)
    rig.run()
    assert rig.is_complete(key)


def test_its_end_is_told_with_the_step_that_it_made_room_for(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=8, max_length=28)
    first = rig.add(prompt(1), 20, interrupt_policy=RETURN)
    second = rig.add(prompt(2), 20, interrupt_policy=RETURN)
    rig.run()
    assert interrupted(rig) == [second]
    (output,) = [each for each in rig.outputs if any(item.key == second for item in each.ended)]
    assert output.keys == [first]
