"""Groups whose members end, fail or are preempted."""

from __future__ import annotations

from typing import Any

from headrace_engine.generation_config import InterruptPolicy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.delayed_runner import DelayedRig
from support.core.rig import Rig
from support.core.simulated import expected_scores
from unit.core.scheduling.grouped import PROMPT, add_group


def prompt_rows(top: int | None) -> list[tuple[float, list[int]]]:
    """What is to be told of PROMPT."""
    return [] if top is None else expected_scores(PROMPT, top)


def test_a_group_goes_on_when_its_prompts_computer_is_stopped() -> None:
    rig = Rig(num_blocks=200, max_prefill_tokens=8)
    first, *others = add_group(rig, 4)
    rig.steps(2)
    assert rig.stat.running == 1
    rig.end(first)
    rig.end(others.pop())
    rig.run()
    assert all(rig.is_complete(key) for key in others)
    rig.assert_idle()


def test_all_of_a_group_can_be_ended_before_it_begins() -> None:
    rig = Rig(num_blocks=200, max_prefill_tokens=8)
    keys = add_group(rig, 4)
    rig.steps(1)
    for key in reversed(keys):
        rig.end(key)
    rig.run()
    assert all(not rig.tokens[key] for key in keys)
    rig.assert_idle()


def test_a_failing_step_costs_those_that_fail_alone() -> None:
    rig = Rig(num_blocks=200)
    keys = add_group(rig, 3)
    rig.runner.raises = lambda step: step.index == 0 and len(step.token_ids) > 1
    rig.run()
    assert rig.ended[keys[0]].error
    assert all(rig.is_complete(key) for key in keys[1:])
    rig.assert_idle()


def test_what_a_leader_can_tell_no_more_another_one_tells() -> None:
    """Also one that has computed all of the prompt, and drawn from it."""
    rig = Rig(num_blocks=200)
    first, *others = add_group(rig, 3, prompt_logprobs=1)
    rig.runner.raises = lambda step: step.index == 0 and step.start == 28
    rig.run()
    assert rig.ended[first].error
    assert all(rig.is_complete(key) for key in others)
    assert rig.prompt_logprobs == {first: prompt_rows(1)[:28], others[0]: prompt_rows(1)}
    rig.assert_idle()


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30), st.booleans()), min_size=1, max_size=4),
    num_blocks=st.integers(16, 60),
    budget=st.integers(8, 40),
    failing=st.integers(-1, 3),
    policy=st.sampled_from(InterruptPolicy),
    kind=st.sampled_from([Rig, DelayedRig]),
)
def test_whatever_happens_a_prompt_is_told(
    groups: list[tuple[int, int, bool]],
    num_blocks: int,
    budget: int,
    failing: int,
    policy: InterruptPolicy,
    kind: type[Rig],
) -> None:
    """Once, unless one that was telling it has ended; to its end, unless all have."""
    rig = kind(num_blocks=num_blocks, max_prefill_tokens=budget)
    rig.runner.raises = lambda step: step.index == failing and step.start > 9
    for number, (count, length, asks) in enumerate(groups, 1):
        fields: dict[str, Any] = {"prompt_logprobs": 1} if asks else {}
        add_group(rig, count, number, PROMPT[:length], max_new=12, interrupt_policy=policy, **fields)
        rig.step()
    rig.run()
    for request in rig.requests.values():
        others = [key for key, other in rig.requests.items() if other.group == request.group]
        reports = [rig.prompt_logprobs[key] for key in others if key in rig.prompt_logprobs]
        whole = prompt_rows(request.prompt_logprobs)[: len(request.prompt) - 1]
        if rig.is_complete(request.key) and whole:
            assert max(reports, key=len) == whole
        assert all(report == whole[: len(report)] for report in reports)
        assert sum(report == whole for report in reports) <= 1 or not whole
    rig.assert_idle()


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=4),
    num_blocks=st.integers(16, 40),
    policy=st.sampled_from(InterruptPolicy),
    stopped=st.sets(st.integers(1, 20)),
)
def test_whatever_happens_the_blocks_add_up(
    groups: list[tuple[int, int]], num_blocks: int, policy: InterruptPolicy, stopped: set[int]
) -> None:
    rig = Rig(num_blocks=num_blocks, max_prefill_tokens=8)
    keys: list[int] = []
    for group, (count, length) in enumerate(groups, 1):
        prompt = [group] * length
        keys += add_group(rig, count, group=group, prompt=prompt, max_new=12, interrupt_policy=policy)
    rig.steps(3)
    for key in stopped.intersection(keys):
        rig.end(key)
    rig.run()
    if policy is InterruptPolicy.RESUME:
        assert all(rig.is_complete(key) for key in keys if key not in stopped)
    rig.assert_idle()
