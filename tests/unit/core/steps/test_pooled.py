"""Sums of last hidden states: each token of a prompt counts once, whatever becomes of its sequence."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.rig import Rig
from support.core.simulated import state_sum
from unit.core.conftest import MakeRig

PROMPT = list(range(100, 130))


def assert_pooled(rig: Rig, key: int) -> None:
    """The pieces are consecutive, and add up to the sum of what an earlier core had not reported."""
    request = rig.requests[key]
    first = max(request.pooled or 0, request.prompt_reported)
    pieces = rig.pooled.get(key, [])
    assert [first, *(piece.end for piece in pieces)] == [*(piece.position for piece in pieces), len(request.prompt)]
    for piece in pieces:
        assert array("d", piece.states)[0] == state_sum(request.prompt, piece.position, piece.end)


@pytest.mark.parametrize("budget", [5, 16, 60])
@pytest.mark.parametrize("first", [0, 7, 29])
def test_a_prompt_is_pooled_in_chunks(budget: int, first: int, make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=budget, max_batch=4)
    asking, quiet = rig.add(PROMPT, 1, pooled=first), rig.add(PROMPT[5:])
    rig.run()
    rig.assert_all_complete()
    assert_pooled(rig, asking)
    assert quiet not in rig.pooled


def test_a_cached_prompt_is_computed_again(make_rig: MakeRig) -> None:
    rig = make_rig()
    for _ in range(2):
        key = rig.add(PROMPT, 1, pooled=0)
        rig.run()
        assert rig.cached[key] == 0
        assert_pooled(rig, key)


def test_after_a_preemption_nothing_counts_again(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=20, max_prefill_tokens=12)
    rig.add(PROMPT, max_new=30)
    rig.steps(4)
    last = rig.add(PROMPT[::-1], max_new=12, pooled=0, priority=-1)
    rig.run()
    assert set(rig.preempted) == {last}
    rig.assert_all_complete()
    assert_pooled(rig, last)


@pytest.mark.parametrize("known", [0, 1, 7, 29, 30])
def test_another_core_adds_the_rest(known: int, make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=12)
    key = rig.add(PROMPT, 1, pooled=0, prompt_reported=known)
    rig.run()
    assert_pooled(rig, key)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_random_loads_pool_each_prompt_once(seed: int) -> None:
    random = Random(seed)
    rig = Rig(num_blocks=random.randrange(16, 40), max_prefill_tokens=random.randrange(8, 33))
    asking = []
    for _ in range(12):
        prompt = [random.randrange(900) for _ in range(random.randrange(1, 40))]
        pooled = random.choice([None, 0, len(prompt) - 1])
        key = rig.add(prompt, random.randrange(1, 12), pooled=pooled, priority=random.randrange(3))
        asking += [key] * (pooled is not None)
        rig.steps(random.randrange(4))
    rig.run()
    rig.assert_all_complete()
    for key in asking:
        assert_pooled(rig, key)
