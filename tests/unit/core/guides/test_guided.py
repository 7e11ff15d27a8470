"""A core samples only what grammars allow, whatever happens to a sequence."""

from __future__ import annotations

import json
import threading

import pytest
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from headrace_engine.result_types import FinishReason
from headrace_engine.sampling_params import LogitRules, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clocks.waiting import LIMIT
from support.core.rig import Rig
from support.core.simulated import expected, tiny_vocabulary

EOS = (2,)
LETTERS = grammar_of(ResponseFormat(ResponseFormatKind.REGEX, "[a-z]*"))
WORD = grammar_of(ResponseFormat(ResponseFormatKind.CHOICE, choices=("yes", "no", "perhaps")))
NUMBERS = grammar_of(
    ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "integer"}}))
)


def test_free_and_guided_sequences_run_side_by_side() -> None:
    rig = Rig()
    for number, grammar in enumerate(("", WORD, NUMBERS, LETTERS, WORD)):
        rig.add([1, 2, number], 12, grammar=grammar, eos_ids=EOS)
    rig.run()
    rig.assert_all_complete()
    assert rig.ended[2].reason is FinishReason.EOS
    rig.assert_idle()


def test_a_text_that_is_complete_ends_without_eos() -> None:
    rig = Rig()
    key = rig.add([1], 12, grammar=WORD)
    rig.run()
    assert rig.ended[key].reason is FinishReason.NO_TOKEN_LEFT
    rig.assert_all_complete()


def test_what_an_earlier_core_generated_counts() -> None:
    first = Rig()
    key = first.add([1, 2], 12, grammar=NUMBERS, eos_ids=EOS)
    first.run()
    ids = first.tokens[key]
    for length in range(len(ids)):
        later = Rig()
        later.add([1, 2], 12, grammar=NUMBERS, eos_ids=EOS, generated=tuple(ids[:length]))
        later.run()
        assert later.tokens[1] == ids


@settings(max_examples=30, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 20), min_size=2, max_size=8),
    num_blocks=st.integers(16, 24),
    seed=st.integers(0, 2**63 - 1),
)
def test_preemption_changes_nothing(prompts: list[int], num_blocks: int, seed: int) -> None:
    rig = Rig(num_blocks=num_blocks)
    for number, length in enumerate(prompts):
        grammar = (LETTERS, "", NUMBERS)[number % 3]
        sampling = SamplingParams(seed=seed, temperature=1.0)
        rig.add([number + 1] * length, 20, grammar=grammar, eos_ids=EOS, sampling=sampling)
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()


def test_allowed_ids_apply_together_with_a_grammar() -> None:
    rig = Rig()
    only = tuple(range(3 + ord("a"), 3 + ord("e")))
    key = rig.add([1], 12, grammar=LETTERS, rules=LogitRules(allowed_token_ids=only))
    rig.run()
    assert set(rig.tokens[key]) <= set(only)
    assert len(rig.tokens[key]) == 12


def test_bc158_a_grammar_being_compiled_delays_no_other_sequence() -> None:
    """Not even if the core was idle when it arrived."""
    made, vocabulary = threading.Event(), tiny_vocabulary()

    class Slow:
        def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
            assert made.wait(LIMIT)
            return vocabulary.guide(grammar, eos_ids)

        def has_capacity(self, grammar: str, size: int) -> bool:
            return True

    rig = Rig()
    rig.core._intake._guides._open_maker = Slow
    guided = rig.add([1], 12, grammar=WORD, eos_ids=EOS)
    rig.step()
    free = rig.add([2], 3)
    while free not in rig.ended:
        rig.step()
    assert (rig.is_complete(free), rig.tokens[guided]) == (True, [])
    made.set()
    rig.run()
    rig.assert_all_complete()
    rig.assert_idle()


def test_bc158_a_sequence_ended_before_its_guide_is_gone() -> None:
    rig = Rig()
    key = rig.add([1], 12, grammar=WORD, eos_ids=EOS)
    rig.end(key)
    other = rig.add([2], 3)
    rig.run()
    assert rig.tokens[key] == []
    assert rig.is_complete(other)
    rig.assert_idle()


def test_a_grammar_that_does_not_compile_ends_its_sequence_alone() -> None:
    rig = Rig()
    key, other = rig.add([1], 12, grammar="nonsense"), rig.add([2], 3)
    rig.run()
    assert rig.ended[key].reason is FinishReason.RESPONSE_FORMAT_LIMIT
    assert rig.is_complete(other)


def test_the_guide_compiler_may_fail_to_load() -> None:
    """If the model's files are gone, for example, the format is not at fault."""
    rig = Rig()

    def fail() -> None:
        raise OSError("no such file")

    rig.core._intake._guides._open_maker = fail
    key = rig.add([1], 12, grammar=WORD)
    rig.run()
    assert (rig.ended[key].reason, rig.ended[key].error) == (FinishReason.ERROR, "no such file")


def test_a_text_beyond_the_parsers_limits_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    take = Guide.take

    def fail(guide: Guide, token_ids: list[int]) -> None:
        take(guide, token_ids)
        if token_ids:
            raise GuideFailed("too much")

    monkeypatch.setattr(Guide, "take", fail)
    key, other = rig.add([1], 12, grammar=LETTERS), rig.add([2], 3)
    rig.run()
    assert rig.ended[key].reason is FinishReason.RESPONSE_FORMAT_LIMIT
    assert len(rig.tokens[key]) == 1
    assert rig.is_complete(other)
    rig.assert_idle()


def test_a_guided_text_differs_from_the_free_one() -> None:
    """Otherwise the tests above would prove nothing."""
    rig = Rig()
    free, guided = rig.add([1], 12), rig.add([1], 12, grammar=NUMBERS, eos_ids=EOS)
    assert expected(rig.requests[free]) != expected(rig.requests[guided])


class Panic(BaseException):
    """What native libraries raise."""


def test_f2_a_panic_in_compiling_ends_its_sequence_alone() -> None:
    class Panicking:
        def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
            raise Panic("index out of bounds")

        def has_capacity(self, grammar: str, size: int) -> bool:
            return True

    rig = Rig()
    rig.core._intake._guides._open_maker = Panicking
    key, other = rig.add([1], 12, grammar=WORD), rig.add([2], 3)
    rig.run()
    assert rig.ended[key].reason is FinishReason.ERROR
    assert "Panic: index out of bounds" in rig.ended[key].error
    assert rig.is_complete(other)
    rig.assert_idle()


def test_f2_a_panic_in_mid_text_ends_its_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    take = Guide.take

    def fail(guide: Guide, token_ids: list[int]) -> None:
        if token_ids:
            raise Panic("index out of bounds")
        take(guide, token_ids)

    monkeypatch.setattr(Guide, "take", fail)
    key, other = rig.add([1], 12, grammar=LETTERS), rig.add([2], 3)
    rig.run()
    assert rig.ended[key].reason is FinishReason.ERROR
    assert "Panic: index out of bounds" in rig.ended[key].error
    assert rig.is_complete(other)
    rig.assert_idle()
