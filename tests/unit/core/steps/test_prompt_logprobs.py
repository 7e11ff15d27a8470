"""Log-probabilities of prompts, and vectors: each is told once, as it is alone, whatever becomes of its sequence."""

from __future__ import annotations

from random import Random

import pytest
from headrace_engine.generation_config import InterruptPolicy
from headrace_engine.sampling_params import SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.rig import Rig
from support.core.simulated import expected_scores, vectors
from unit.core.conftest import MakeRig
from unit.core.scheduling.test_groups import NUMBERS

PROMPT = list(range(100, 130))


def all_reported(rig: Rig, key: int) -> bool:
    """Whether what a core before did not tell was told, and as it is alone."""
    request = rig.requests[key]
    whole = expected_scores(request.prompt, request.prompt_logprobs or 0)
    return rig.prompt_logprobs.get(key, []) == whole[max(1, request.prompt_reported) - 1 :]


@pytest.mark.parametrize("budget", [5, 16, 60])
@pytest.mark.parametrize("top", [0, 3])
def test_a_prompt_is_told_in_chunks(budget: int, top: int, make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=budget, max_batch=4)
    asking = rig.add(PROMPT, prompt_logprobs=top)
    quiet = rig.add(PROMPT[5:])
    rig.run()
    rig.assert_all_complete()
    assert all_reported(rig, asking)
    assert (quiet in rig.prompt_logprobs, rig.vectors) == (False, {})
    assert max(len(piece.logprobs) for output in rig.outputs for piece in output.prompts) <= budget


def test_a_prompt_of_one_token_has_nothing_to_tell(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add([7], prompt_logprobs=2)
    rig.run()
    rig.assert_all_complete()
    assert rig.prompt_logprobs == {}


def test_the_prefix_cache_is_filled_and_not_read(make_rig: MakeRig) -> None:
    rig = make_rig()
    for _ in range(2):
        key = rig.add(PROMPT, prompt_logprobs=1)
        rig.run()
        assert (rig.cached[key], all_reported(rig, key)) == (0, True)
    key = rig.add(PROMPT)
    rig.run()
    assert rig.cached[key] == 28


def test_vectors_come_with_each_token(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = [rig.add(PROMPT[:9], tensors=tensors, max_new=6) for tensors in (True, False)]
    rig.run()
    context = [*PROMPT[:9], *rig.tokens[keys[0]]]
    assert rig.vectors[keys[0]] == [vectors(context[: 9 + place]) for place in range(6)]
    assert rig.vectors[keys[1]] == [b""] * 6


def test_after_a_preemption_nothing_is_told_again(make_rig: MakeRig) -> None:
    """Put back in the middle of its prompt, and while it generates."""
    rig = make_rig(num_blocks=20, max_prefill_tokens=12)
    first = rig.add(PROMPT, max_new=30)
    rig.steps(4)
    last = rig.add(PROMPT[::-1], max_new=12, prompt_logprobs=2, tensors=True, priority=-1)
    rig.run()
    assert rig.preempted
    assert set(rig.preempted) == {last}
    rig.assert_all_complete()
    assert all_reported(rig, last)
    assert len(rig.vectors[last]) == 12
    assert first not in rig.prompt_logprobs


def test_one_that_returns_its_blocks_has_told_what_it_has(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=20, max_prefill_tokens=12)
    rig.add(PROMPT, max_new=30)
    rig.steps(4)
    key = rig.add(PROMPT[::-1], max_new=12, prompt_logprobs=2, priority=-1, interrupt_policy=InterruptPolicy.RETURN)
    rig.run()
    assert key in rig.ended
    reported = rig.prompt_logprobs[key]
    assert reported == expected_scores(PROMPT[::-1], 2)[: len(reported)]


@pytest.mark.parametrize("known", [0, 1, 7, 29, 30])
def test_another_core_tells_the_rest(known: int, make_rig: MakeRig) -> None:
    """What was known is not told again; where all was, the cache is read as ever."""
    rig = make_rig(max_prefill_tokens=12)
    rig.add(PROMPT)
    rig.run()
    key = rig.add(PROMPT, prompt_logprobs=1, prompt_reported=known, generated=(5, 6) if known == 30 else ())
    rig.run()
    assert all_reported(rig, key)
    assert rig.cached[key] == (28 if known == 30 else 0)


@pytest.mark.parametrize("fields", [{}, {"use_prefix_cache": False}, {"grammar": NUMBERS, "eos_ids": (2,)}], ids=str)
def test_one_of_a_group_tells_of_the_prompt(fields: dict[str, object], make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=200, max_prefill_tokens=24)
    sampling = SamplingParams(seed=1, temperature=1.0)
    keys = [
        rig.add(PROMPT, 10, sampling=sampling, index=index, group=1, prompt_logprobs=1, **fields)  # type: ignore[arg-type]
        for index in range(5)
    ]
    rig.run()
    rig.assert_all_complete()
    assert list(rig.prompt_logprobs) == keys[:1]
    assert all_reported(rig, keys[0])


def test_a_group_repeats_nothing_that_an_ended_member_reported(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=200)
    keys = [rig.add(PROMPT, 1, index=index, group=1, prompt_logprobs=1) for index in range(4)]
    rig.run()
    rig.assert_all_complete()
    assert list(rig.prompt_logprobs) == keys[:1]


def test_if_one_of_a_group_ends_in_the_prompt_another_reports_it(make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=8)
    first, *others = [rig.add(PROMPT, group=1, index=index, prompt_logprobs=1) for index in range(3)]
    rig.steps(2)
    rig.end(first)
    rig.run()
    assert len(rig.prompt_logprobs[first]) == 16
    assert all_reported(rig, others[0])
    assert others[1] not in rig.prompt_logprobs


def test_a_prompt_that_goes_wrong_ends_alone(make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=12)
    rig.runner.spoils = lambda step: 120 in step.token_ids
    bad, good = rig.add(PROMPT, prompt_logprobs=1), rig.add(PROMPT[:10], prompt_logprobs=1)
    rig.run()
    assert rig.ended[bad].error == "logits are not finite"
    assert rig.is_complete(good)
    assert all_reported(rig, good)


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False))
def test_whatever_happens_each_prompt_is_told_once(random: Random) -> None:
    """Random prompts, budgets and pools, with sequences that ask for nothing between."""
    rig = Rig(num_blocks=random.randint(17, 40), max_prefill_tokens=random.randint(8, 40))
    for number in range(random.randint(2, 10)):
        prompt = [random.randrange(5) for _ in range(random.randint(1, 40))]
        asks = random.random() < 0.6
        fields = {"prompt_logprobs": random.randint(0, 3), "tensors": random.random() < 0.5} if asks else {}
        priority = random.randint(-2, 2)
        rig.add(prompt, random.randint(1, 20), priority=priority, index=number, **fields)
        rig.steps(random.randint(0, 3))
    rig.run()
    rig.assert_all_complete()
    for key, request in rig.requests.items():
        assert all_reported(rig, key) if request.prompt_logprobs is not None else key not in rig.prompt_logprobs
    rig.assert_idle()
