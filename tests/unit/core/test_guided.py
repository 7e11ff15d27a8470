"""A core draws what grammars allow, whatever happens to a sequence meanwhile."""

from __future__ import annotations

import json
import threading

import pytest
from headrace_engine.generation_config import LogitRules, ResponseFormat, ResponseFormatKind, SamplingParams
from headrace_engine.guided.grammar import grammar_of
from headrace_engine.guided.guide import Guide, GuideFailed
from headrace_engine.result_types import FinishReason
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.core.bench import Bench
from unit.core.simulated import expected, tiny_vocabulary

EOS = (2,)
LETTERS = grammar_of(ResponseFormat(ResponseFormatKind.REGEX, "[a-z]*"))
WORD = grammar_of(ResponseFormat(ResponseFormatKind.CHOICE, choices=("yes", "no", "perhaps")))
NUMBERS = grammar_of(
    ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "integer"}}))
)


def test_free_and_guided_sequences_run_side_by_side() -> None:
    bench = Bench()
    for number, grammar in enumerate(("", WORD, NUMBERS, LETTERS, WORD)):
        bench.add([1, 2, number], 12, grammar=grammar, eos_ids=EOS)
    bench.run()
    bench.assert_all_complete()
    assert bench.ended[2].reason is FinishReason.EOS
    bench.assert_idle()


def test_a_text_that_is_complete_ends_without_eos() -> None:
    bench = Bench()
    key = bench.add([1], 12, grammar=WORD)
    bench.run()
    assert bench.ended[key].reason is FinishReason.NO_TOKEN_LEFT
    bench.assert_all_complete()


def test_what_an_earlier_core_generated_counts() -> None:
    first = Bench()
    key = first.add([1, 2], 12, grammar=NUMBERS, eos_ids=EOS)
    first.run()
    ids = first.tokens[key]
    for length in range(len(ids)):
        later = Bench()
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
    bench = Bench(num_blocks=num_blocks)
    for number, length in enumerate(prompts):
        grammar = (LETTERS, "", NUMBERS)[number % 3]
        sampling = SamplingParams(seed=seed, temperature=1.0)
        bench.add([number + 1] * length, 20, grammar=grammar, eos_ids=EOS, sampling=sampling)
    bench.run()
    bench.assert_all_complete()
    bench.assert_idle()


def test_allowed_ids_hold_beside_a_grammar() -> None:
    bench = Bench()
    only = tuple(range(3 + ord("a"), 3 + ord("e")))
    key = bench.add([1], 12, grammar=LETTERS, rules=LogitRules(allowed_token_ids=only))
    bench.run()
    assert set(bench.tokens[key]) <= set(only)
    assert len(bench.tokens[key]) == 12


def test_bc158_a_grammar_in_the_making_holds_up_nobody_else() -> None:
    """Not even where the core had nothing else to do when it came."""
    made, vocabulary = threading.Event(), tiny_vocabulary()

    class Slow:
        def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
            assert made.wait(20)
            return vocabulary.guide(grammar, eos_ids)

        def has_room(self, grammar: str, size: int) -> bool:
            return True

    bench = Bench()
    bench.core._guides._open_maker = Slow
    guided = bench.add([1], 12, grammar=WORD, eos_ids=EOS)
    bench.step()
    free = bench.add([2], 3)
    while free not in bench.ended:
        bench.step()
    assert (bench.is_complete(free), bench.tokens[guided]) == (True, [])
    made.set()
    bench.run()
    bench.assert_all_complete()
    bench.assert_idle()


def test_bc158_a_sequence_that_is_ended_before_its_guide_is_made_is_gone() -> None:
    bench = Bench()
    key = bench.add([1], 12, grammar=WORD, eos_ids=EOS)
    bench.end(key)
    other = bench.add([2], 3)
    bench.run()
    assert bench.tokens[key] == []
    assert bench.is_complete(other)
    bench.assert_idle()


def test_a_grammar_that_cannot_be_compiled_ends_its_sequence_alone() -> None:
    bench = Bench()
    key, other = bench.add([1], 12, grammar="nonsense"), bench.add([2], 3)
    bench.run()
    assert bench.ended[key].reason is FinishReason.RESPONSE_FORMAT_LIMIT
    assert bench.is_complete(other)


def test_what_makes_guides_may_fail() -> None:
    """The model's files are gone, say: that is no fault of a format."""
    bench = Bench()

    def fail() -> None:
        raise OSError("no such file")

    bench.core._guides._open_maker = fail
    key = bench.add([1], 12, grammar=WORD)
    bench.run()
    assert (bench.ended[key].reason, bench.ended[key].error) == (FinishReason.ERROR, "no such file")


def test_a_text_beyond_the_parsers_limits_ends_its_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    take = Guide.take

    def fail(guide: Guide, token_ids: list[int]) -> None:
        take(guide, token_ids)
        if token_ids:
            raise GuideFailed("too much")

    monkeypatch.setattr(Guide, "take", fail)
    key, other = bench.add([1], 12, grammar=LETTERS), bench.add([2], 3)
    bench.run()
    assert bench.ended[key].reason is FinishReason.RESPONSE_FORMAT_LIMIT
    assert len(bench.tokens[key]) == 1
    assert bench.is_complete(other)
    bench.assert_idle()


def test_a_guided_text_is_none_that_would_have_come_anyway() -> None:
    """So that the tests above compare what they mean to."""
    bench = Bench()
    free, guided = bench.add([1], 12), bench.add([1], 12, grammar=NUMBERS, eos_ids=EOS)
    assert expected(bench.requests[free]) != expected(bench.requests[guided])


class Panic(BaseException):
    """What native libraries raise."""


def test_f2_a_panic_while_a_grammar_is_compiled_ends_its_sequence_alone() -> None:
    class Panicking:
        def guide(self, grammar: str, eos_ids: tuple[int, ...], size: int, seconds: float) -> Guide:
            raise Panic("index out of bounds")

        def has_room(self, grammar: str, size: int) -> bool:
            return True

    bench = Bench()
    bench.core._guides._open_maker = Panicking
    key, other = bench.add([1], 12, grammar=WORD), bench.add([2], 3)
    bench.run()
    assert bench.ended[key].reason is FinishReason.ERROR
    assert "Panic: index out of bounds" in bench.ended[key].error
    assert bench.is_complete(other)
    bench.assert_idle()


def test_f2_a_panic_in_the_middle_of_a_text_ends_its_sequence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    take = Guide.take

    def fail(guide: Guide, token_ids: list[int]) -> None:
        if token_ids:
            raise Panic("index out of bounds")
        take(guide, token_ids)

    monkeypatch.setattr(Guide, "take", fail)
    key, other = bench.add([1], 12, grammar=LETTERS), bench.add([2], 3)
    bench.run()
    assert bench.ended[key].reason is FinishReason.ERROR
    assert "Panic: index out of bounds" in bench.ended[key].error
    assert bench.is_complete(other)
    bench.assert_idle()
