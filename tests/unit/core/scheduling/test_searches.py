"""Beam searches in the core: whatever happens around them, their texts are those of a search that is alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from headrace_engine.generation_config import BeamStopping, InterruptPolicy
from headrace_engine.ipc.commands import BeamPlan
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import LogitRules, SamplingParams
from support.core.delayed_runner import DelayedRig
from support.core.rig import Rig
from support.core.simulated import tiny_vocabulary
from unit.core.conftest import MakeRig

PLAN = BeamPlan(4)


def prompt(seed: int, length: int = 9) -> list[int]:
    return [(seed * 37 + place) % 1000 for place in range(length)]


def texts(rig: Rig, keys: list[int]) -> list[list[int]]:
    return [rig.tokens[key] for key in keys]


def alone(make_rig: MakeRig, *search: Any, **fields: Any) -> list[list[int]]:
    """The texts of a search on a pool of its own."""
    rig = make_rig()
    keys = rig.search(*search, **fields)
    rig.run()
    assert not rig.preempted
    return texts(rig, keys)


def drawn(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A random search that fits a pool of 42 blocks."""
    rng = random.Random(seed)
    beams = rng.randint(2, 3)
    plan = BeamPlan(beams, rng.choice([-1.0, 0.0, 1.0, 2.0]), rng.choice(list(BeamStopping)))
    eos_ids = tuple(rng.sample(range(1000), rng.choice([20, 200])))
    fields: dict[str, Any] = {"eos_ids": eos_ids, "min_new": rng.choice([0, 3])}
    if rng.random() < 0.5:
        fields["rules"] = LogitRules(repetition_penalty=1.2, no_repeat_ngram_size=2)
    return (prompt(seed, rng.randint(1, 14)), rng.randint(15, 40), plan, rng.randint(1, beams)), fields


@pytest.mark.parametrize("seed", range(10))
def test_preemption_changes_no_text(make_rig: MakeRig, seed: int) -> None:
    """Searches and sequences over a pool that is too small for them all."""
    cases = [drawn(6 * seed + number) for number in range(6)]
    rig = make_rig(num_blocks=42, max_batch=24)
    keys, others = [], []
    for search, fields in cases:
        keys.append(rig.search(*search, **fields))
        others.append(rig.add(prompt(seed + len(keys)), 40))
        rig.steps(seed % 4)
    rig.run()
    for (search, fields), each in zip(cases, keys, strict=True):
        assert texts(rig, each) == alone(make_rig, *search, **fields)
        assert all(key in rig.ended for key in each)
    assert all(rig.is_complete(key) for key in others)


def test_all_beams_of_the_last_search_give_way(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=24)
    first = rig.search(prompt(1), 24, PLAN, 2)
    second = rig.search(prompt(2), 24, PLAN, 2)
    rig.run()
    assert set(rig.preempted) == set(second)
    assert texts(rig, first) == alone(make_rig, prompt(1), 24, PLAN, 2)
    assert texts(rig, second) == alone(make_rig, prompt(2), 24, PLAN, 2)


def test_a_search_alone_fits_the_smallest_pool_that_takes_it(make_rig: MakeRig) -> None:
    """Four beams of 9 + 23 tokens that are computed, in blocks of four."""
    rig = make_rig(num_blocks=4 * 8)
    keys = rig.search(prompt(1), 24, PLAN, 4)
    rig.run()
    assert [len(text) for text in texts(rig, keys)] == [24] * 4
    assert not rig.preempted


def test_beams_take_places_in_the_batch(make_rig: MakeRig) -> None:
    """Of six places a search of four leaves two: the second search waits, and a sequence goes on."""
    rig = make_rig(max_batch=6)
    first, second = rig.search(prompt(1), 12, PLAN), rig.search(prompt(2), 12, PLAN)
    other = rig.add(prompt(3), 12)
    rig.steps(4)
    assert (rig.stat.running, rig.stat.waiting) == (5, 1)
    assert {key for step in rig.begun for key in step} == {*first, other}
    rig.run()
    assert texts(rig, second) == alone(make_rig, prompt(2), 12, PLAN)


def test_beams_share_the_blocks_of_their_prompt(make_rig: MakeRig) -> None:
    """A prompt of 32 tokens is in 8 blocks, once; each of the four beams has one of its own."""
    rig = make_rig(max_prefill_tokens=64)
    rig.search(prompt(1, 32), 4, PLAN)
    rig.steps(3)
    assert rig.stat.running == 4
    assert rig.stat.pool.blocks_used == 8 + 4
    rig.run()


def test_a_prefix_in_the_cache_is_not_computed_again(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = [rig.search(prompt(1, 17), 6, PLAN)[0] for _ in range(2)]
    rig.run()
    later = rig.search(prompt(1, 17), 6, PLAN)[0]
    rig.run()
    assert rig.cached[later] == 16
    assert rig.tokens[later] == rig.tokens[keys[0]] == rig.tokens[keys[1]]


def test_prompts_in_chunks_change_no_text(make_rig: MakeRig) -> None:
    rig = make_rig(max_prefill_tokens=8)
    keys = rig.search(prompt(1, 41), 8, PLAN, 2)
    rig.run()
    assert texts(rig, keys) == alone(make_rig, prompt(1, 41), 8, PLAN, 2)


def test_the_end_of_one_text_leaves_the_others(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = rig.search(prompt(1), 12, PLAN, 3)
    rig.steps(5)
    rig.end(keys[1])
    rig.run()
    assert texts(rig, keys) == [*alone(make_rig, prompt(1), 12, PLAN, 1), [], texts(rig, keys)[2]]
    assert set(rig.ended) == {keys[0], keys[2]}


def test_the_end_of_all_texts_ends_the_search(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = rig.search(prompt(1), 12, PLAN, 2)
    rig.steps(5)
    for key in keys:
        rig.end(key)
    rig.step()
    assert (rig.stat.running, rig.stat.waiting, rig.stat.pool.blocks_used) == (0, 0, 0)
    assert not rig.ended


def test_policy_return_ends_all_texts(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=24)
    rig.search(prompt(1), 24, PLAN)
    keys = rig.search(prompt(2), 24, PLAN, 2, interrupt_policy=InterruptPolicy.RETURN)
    rig.run()
    assert [rig.ended[key].reason for key in keys] == [FinishReason.INTERRUPTED] * 2
    assert texts(rig, keys) == [[], []]


def test_a_row_that_fails_ends_its_search_alone(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = rig.search(prompt(1), 12, PLAN, 2)
    other = rig.search(prompt(2), 12, PLAN)
    rig.steps(4)
    spoilt: list[int] = []
    rig.runner.spoils = lambda step: not spoilt and not spoilt.append(1)
    rig.run()
    assert [rig.ended[key].reason for key in keys] == [FinishReason.ERROR] * 2
    assert texts(rig, other) == alone(make_rig, prompt(2), 12, PLAN)


def test_a_step_that_raises_is_computed_row_by_row(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = rig.search(prompt(1), 12, PLAN, 2)
    rig.steps(4)
    raised: list[int] = []
    rig.runner.raises = lambda step: not raised and not raised.append(1)
    rig.run()
    assert raised
    assert texts(rig, keys) == alone(make_rig, prompt(1), 12, PLAN, 2)


@pytest.mark.parametrize("count", [3, 12])
def test_what_was_delivered_is_not_reported_again(make_rig: MakeRig, count: int) -> None:
    best = alone(make_rig, prompt(1), 12, PLAN)[0]
    rig = make_rig()
    (key,) = rig.search(prompt(1), 12, PLAN, generated=tuple(best[:count]))
    rig.run()
    assert rig.tokens[key] == best[count:]
    assert rig.ended[key].reason is FinishReason.MAX_LENGTH


def test_another_beginning_than_was_delivered_is_an_error(make_rig: MakeRig) -> None:
    rig = make_rig()
    (key,) = rig.search(prompt(1), 12, PLAN, generated=(1, 2, 3))
    rig.run()
    assert rig.ended[key].reason is FinishReason.ERROR
    assert "does not begin with the 3 tokens" in rig.ended[key].error


def test_progress_is_reported(make_rig: MakeRig) -> None:
    rig = make_rig()
    keys = rig.search(prompt(1), 5, PLAN, 2)
    rig.run()
    assert [output.searched for output in rig.outputs if output.searched] == [
        dict.fromkeys(keys, length) for length in range(1, 6)
    ]


def test_long_texts_are_reported_in_parts(make_rig: MakeRig) -> None:
    rig = make_rig(max_length=1024, num_blocks=1024)
    keys = rig.search(prompt(1), 700, PLAN, 4)
    rig.run()
    assert [len(text) for text in texts(rig, keys)] == [700] * 4
    assert max(len(output.keys) for output in rig.outputs) == 1024


def test_log_probabilities_are_those_of_each_token(make_rig: MakeRig) -> None:
    """By the search itself, and by candidates that rules have changed."""
    sampling = SamplingParams(temperature=0, logprobs=True, top_logprobs=2)
    for rules in (None, LogitRules(bad_words=((1, 2),))):
        rig = make_rig()
        rig.search(prompt(1), 6, PLAN, 2, sampling=sampling, rules=rules)
        rig.run()
        outputs = [output for output in rig.outputs if output.keys]
        assert all(value < 0 for output in outputs for value in output.logprobs)
        assert sum(len(output.logprobs) for output in outputs) == 12


def test_no_beam_goes_on_where_nothing_is_allowed(make_rig: MakeRig) -> None:
    """Of one allowed id there is one text; the second that was asked for has no token."""
    rig = make_rig()
    rules = LogitRules(allowed_token_ids=(7,))
    keys = rig.search(prompt(1), 3, PLAN, 2, rules=rules)
    rig.run()
    assert [rig.ended[key].reason for key in keys][1] is FinishReason.NO_TOKEN_LEFT
    assert rig.tokens[keys[1]] == []


def test_grammars_are_followed_by_each_beam(make_rig: MakeRig) -> None:
    eos = 2
    vocabulary = tiny_vocabulary()
    grammar = 'start: ("ab" | "cd" | "e")+'
    rig = make_rig()
    keys = rig.search([1, 2, 3], 10, PLAN, 2, grammar=grammar, eos_ids=(eos,))
    rig.run()
    for key in keys:
        guide = vocabulary.guide(grammar, (eos,))
        for token in rig.tokens[key]:
            assert guide.allows(token)
            guide.take([token])


def test_more_beams_than_a_step_has_rows_are_refused(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=3)
    (key,) = rig.search(prompt(1), 3, PLAN)
    rig.run()
    assert rig.ended[key].error == "4 beams; 3 sequences are computed at once"


def test_keys_in_use_are_refused(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.search(prompt(1), 3, PLAN, 2)
    command = rig.link.commands[0]
    rig.step()
    rig.link.commands.append(command)
    with pytest.raises(ValueError, match="in use"):
        rig.step()
    rig.run()


def test_steps_ahead_change_no_text() -> None:
    """On a device that computes concurrently, and copies blocks in the order of its work."""
    rig = DelayedRig(num_blocks=42, max_batch=24)
    cases = [drawn(number) for number in range(4)]
    keys = [rig.search(*search, **fields) for search, fields in cases]
    others = [rig.add(prompt(number), 40) for number in range(4)]
    rig.run()
    for (search, fields), each in zip(cases, keys, strict=True):
        free = Rig()
        again = free.search(*search, **fields)
        free.run()
        assert texts(rig, each) == texts(free, again)
    assert all(rig.is_complete(key) for key in others)
    assert any(copies.within for copies in rig.runner.copied)
    rig.assert_idle()
