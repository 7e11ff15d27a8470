"""What a sequence's ids make of its rules, and that it is the same however the sequence came to them."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.core.scheduling.logit_state import LogitState, bit_mask
from headrace_engine.core.scheduling.schedule import Row
from headrace_engine.core.scheduling.sequence import Sequence
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import given
from hypothesis import strategies as st
from unit.core.conftest import MakeRig

ids_of_few = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def penalized(state: LogitState) -> dict[int, float]:
    return dict(zip(state.changes.penalized, state.changes.penalties, strict=True))


def test_bc044_presence_penalty_leaves_the_prompt_alone() -> None:
    """Id 5 stands in the prompt: it has a penalty from when it was generated, the repetition penalty at once."""
    present = LogitState(LogitRules(presence_penalty=2.0), 2)
    assert (present.follow([5, 6]), penalized(present)) == ([], {})
    assert (present.follow([5, 6, 5]), penalized(present)) == ([], {5: 2.0})
    present.follow([5, 6, 5, 5])
    assert penalized(present) == {5: 2.0}
    repeated = LogitState(LogitRules(repetition_penalty=2.0), 2)
    repeated.follow([5, 6])
    assert (repeated.changes.repetition, penalized(repeated)) == (2.0, {5: 0.0, 6: 0.0})


def test_frequency_penalty_counts_what_was_generated() -> None:
    state = LogitState(LogitRules(presence_penalty=1.0, frequency_penalty=0.5), 1)
    state.follow([3, 3, 4, 3, 3])
    assert penalized(state) == {3: 1.0 + 0.5 * 3, 4: 1.5}


def test_a_state_without_rules_changes_nothing() -> None:
    state = LogitState(LogitRules(), 1)
    assert list(state.follow([1, 2, 1, 2])) == []
    assert (penalized(state), state.changes.allowed, len(state.changes.biased)) == ({}, None, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 59, 60, 61])
@given(ids=ids_of_few)
def test_bc048_ngrams_of_prompt_and_generated_come_once(size: int, ids: list[int]) -> None:
    """Against a search of all of them, for every length that the ids had."""
    state = LogitState(LogitRules(no_repeat_ngram_size=size), 1)
    for length in range(1, len(ids) + 1):
        known = ids[:length]
        begun = known[length - size + 1 :] if length >= size - 1 else None
        windows = [known[i : i + size] for i in range(length - size + 1)]
        assert sorted(state.follow(known)) == sorted({window[-1] for window in windows if window[:-1] == begun})


@given(ids=ids_of_few, words=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1))
def test_bad_words_are_masked_where_they_would_be_complete(ids: list[int], words: list[list[int]]) -> None:
    state = LogitState(LogitRules(bad_words=tuple(map(tuple, words))), 1)
    for length in range(1, len(ids) + 1):
        known = ids[:length]
        complete = {word[-1] for word in words if len(word) == 1 or known[-len(word) + 1 :] == word[:-1]}
        assert set(state.follow(known)) == complete


class Counted(list[int]):
    """Ids that count how often a part of them is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


def test_bad_words_that_begin_alike_cost_a_look_each_length() -> None:
    words = tuple((*chance, 7, last) for last in range(50) for chance in ((), (1,), (2,), (3, 1)))
    state, ids = LogitState(LogitRules(bad_words=words), 1), Counted([4, 3, 1, 7])
    assert sorted(set(state.follow(ids))) == list(range(50))
    assert ids.looks <= 1 + 3


@given(ids=ids_of_few, prompt=st.integers(1, 60), steps=st.lists(st.integers(1, 60)))
def test_ids_that_come_one_by_one_make_what_they_make_at_once(ids: list[int], prompt: int, steps: list[int]) -> None:
    rules = LogitRules(1.3, 0.2, 0.1, 2, ((1,), (2, 3)), {4: -1.0}, (1, 2, 3))
    at_once, followed = LogitState(rules, prompt), LogitState(rules, prompt)
    for length in sorted(min(step, len(ids)) for step in steps):
        followed.follow(ids[:length])
    assert sorted(followed.follow(ids)) == sorted(at_once.follow(ids))
    assert penalized(followed) == penalized(at_once)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_bit_mask_has_a_bit_for_each_id(ids: set[int]) -> None:
    words = bit_mask(ids)
    assert {i for i in range(32 * len(words)) if words[i // 32] >> i % 32 & 1} == ids


def test_numbers_beyond_float32_become_the_nearest_float32() -> None:
    """So that no logit becomes infinite, or no number."""
    state = LogitState(LogitRules(repetition_penalty=1e-300, logit_bias={1: 1e300, 2: -1e300}), 1)
    assert state.changes.repetition == 2.0**-126
    assert list(state.changes.biases) == [3.4028234663852886e38, -3.4028234663852886e38]


def test_a_sequence_has_state_only_with_rules_and_once_sampled() -> None:
    plain = Sequence(AddSequence(1, (1, 2, 3), SamplingParams(), 5), 0)
    assert Row(plain, 3).steps()[0].changes is None
    assert plain.logits is None
    ruled = Sequence(AddSequence(1, (1, 2, 3), SamplingParams(), 5, rules=LogitRules(repetition_penalty=2.0)), 0)
    assert Row(ruled, 2).steps()[0].changes is None
    assert ruled.logits is None
    changes = Row(ruled, 3).steps()[0].changes
    assert changes is not None
    assert list(changes.penalized) == [1, 2, 3]


RULES = LogitRules(no_repeat_ngram_size=1, bad_words=tuple((word,) for word in range(0, 1000, 3)))
"""No id twice, and none of a third of them: both change what the simulated runner draws."""


def test_rules_hold_after_preemption(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=18, max_length=64, max_prefill_tokens=9)
    for i in range(8):
        rig.add([i * 100 + j for j in range(3 + 3 * i)], 30, sampling=SamplingParams(seed=i), rules=RULES)
    rig.run()
    assert rig.preempted
    rig.assert_all_complete()
    for key, ids in rig.tokens.items():
        assert len({*rig.requests[key].prompt, *ids}) == len(rig.requests[key].prompt) + len(ids)
        assert all(token_id % 3 for token_id in ids)


def test_rules_hold_in_another_core(make_rig: MakeRig) -> None:
    """What an earlier core generated counts as generated."""
    rig = make_rig()
    whole = rig.add([1, 2, 3], 40, rules=RULES)
    rig.run()
    rest = rig.add([1, 2, 3], 40, rules=RULES, generated=tuple(rig.tokens[whole][:17]))
    rig.run()
    assert rig.tokens[rest] == rig.tokens[whole]


def test_most_likely_ids_come_where_they_were_asked_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.add([1], 2)
    rig.run()
    assert rig.outputs[-1].top_counts == []
    asked = rig.add([2], 1, sampling=SamplingParams(logprobs=True, top_logprobs=3))
    other = rig.add([3], 1)
    rig.run()
    output = rig.outputs[-1]
    counts = dict(zip(output.keys, output.top_counts, strict=True))
    assert counts == {asked: 3, other: 0}
    token_id = rig.tokens[asked][0]
    assert output.top_ids == [token_id, token_id + 1, token_id + 2]
    assert output.top_logprobs == [-1.0, -2.0, -3.0]


@given(
    ids=ids_of_few,
    drafts=st.lists(st.integers(0, 6), max_size=15),
    later=ids_of_few,
    rules=st.builds(
        LogitRules,
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.5, -0.5]),
        no_repeat_ngram_size=st.integers(0, 3),
        bad_words=st.just(((1, 2), (3,))),
    ),
    prompt=st.integers(1, 10),
)
def test_going_back_leaves_no_trace_of_drafts(
    ids: list[int], drafts: list[int], later: list[int], rules: LogitRules, prompt: int
) -> None:
    prompt = min(prompt, len(ids))
    state, plain = LogitState(rules, prompt), LogitState(rules, prompt)
    for each in (state, plain):
        each.follow(ids)
    for count in range(1, len(drafts) + 1):
        hypothetical = [*ids, *drafts[:count]]
        assert sorted(state.follow(hypothetical)) == sorted(LogitState(rules, prompt).follow(hypothetical))
    state.go_back([*ids, *drafts], len(ids))
    for known in (ids, [*ids, *later]):
        assert sorted(state.follow(known)) == sorted(plain.follow(known))
        assert penalized(state) == penalized(plain)
