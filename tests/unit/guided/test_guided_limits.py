"""Limits of formats, ends of guided texts, and guides that start late."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from headrace_engine.guided import vocabulary as vocabulary_module
from headrace_engine.guided.grammar import MAX_BYTES, grammar_of
from headrace_engine.guided.guide import GuideFailed
from headrace_engine.models.tokenizer import TokenizerBundle
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from llguidance import LLMatcher, LLParserLimits
from support.models.guided_walks import IM_END, TREE, Walker, ids_of, refusal, schema_format
from support.models.tiny_tokenizer import VOCAB_SIZE


def tool(number: int) -> dict[str, Any]:
    """The schema of a call of one tool."""
    kinds = [{"type": "boolean"}, {"type": "integer", "maximum": 9, "minimum": 0}, {"enum": ["north", "south"]}]
    parameters = {f"parameter_{place}": kinds[(place + number) % len(kinds)] for place in range(4)}
    arguments = {"type": "object", "properties": parameters, "required": [*parameters], "additionalProperties": False}
    fields = {"name": {"const": f"tool_{number}"}, "arguments": arguments}
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


class TestLimits:
    def test_a_format_has_a_size(self, walker: Walker) -> None:
        longest = "a" * MAX_BYTES
        assert not walker.why_not(ResponseFormat(ResponseFormatKind.REGEX, longest))
        assert str(MAX_BYTES) in refusal(walker, ResponseFormat(ResponseFormatKind.REGEX, longest + "a"))

    @pytest.mark.parametrize("depth", [13, 14])
    def test_bc145_alternatives_without_number_are_refused(self, walker: Walker, depth: int) -> None:
        """By their number, and so within seconds."""
        schema: Any = {"type": "string"}
        for _ in range(depth):
            schema = {"oneOf": [{"type": "object", "properties": {"a": schema}}, {"type": "array", "items": schema}]}
        refusal(walker, schema_format(schema))

    def test_bc145_nested_repetitions_are_no_trouble(self, walker: Walker) -> None:
        pattern = "a|aa"
        for _ in range(12):
            pattern = f"({pattern})+"
        assert walker.draw(ResponseFormat(ResponseFormatKind.REGEX, pattern), 0).text.strip(b"a") == b""

    @pytest.mark.parametrize("limits", [{"step_max_items": 5}, {"max_items_in_row": 4}, {"max_lexer_states": 60}])
    def test_a_text_that_takes_the_parser_too_far_fails(
        self, walker: Walker, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
    ) -> None:
        monkeypatch.setattr(vocabulary_module, "LIMITS", LLParserLimits(**limits))
        narrow = Walker(walker.bundle, VOCAB_SIZE, (IM_END,))
        with pytest.raises(GuideFailed):
            for seed in range(10):
                narrow.draw(schema_format(TREE), seed)

    def test_bc158_calls_of_128_tools_are_compiled_once(self, walker: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each with four parameters: the text is a call of one of them, and the next request finds it compiled."""
        monkeypatch.setattr(vocabulary_module, "LLMatcher", compiler := Mock(wraps=LLMatcher))
        kept = Walker(walker.bundle, VOCAB_SIZE, (IM_END,))
        wanted = schema_format({"anyOf": [tool(number) for number in range(128)]})
        walk = kept.draw(wanted, 0)
        compiled = compiler.call_count
        call = json.loads(walk.text)
        assert call["arguments"].keys() == {f"parameter_{number}" for number in range(4)}
        kept.vocabulary.guide(grammar_of(wanted), ())
        assert compiler.call_count == compiled


class TestEnds:
    def test_only_the_ids_that_end_a_request_end_its_text(self, walker: Walker) -> None:
        wanted = ResponseFormat(ResponseFormatKind.CHOICE, choices=("a",))
        for eos_ids in ((), (0, 1), (VOCAB_SIZE - 1,)):
            guide = walker.vocabulary.guide(grammar_of(wanted), eos_ids)
            guide.take(walker.bundle.encode_plain("a"))
            assert ids_of(guide) == set(eos_ids)

    def test_after_an_id_that_was_not_allowed_none_is(self, walker: Walker) -> None:
        guide = walker.guide(ResponseFormat(ResponseFormatKind.CHOICE, choices=("a", "b")))
        guide.take(walker.bundle.encode_plain("c"))
        assert ids_of(guide) == set()
        guide.take(walker.bundle.encode_plain("a"))
        assert ids_of(guide) == set()

    def test_special_tokens_are_no_text(self, walker: Walker) -> None:
        guide = walker.guide(ResponseFormat(ResponseFormatKind.REGEX, "(?s).*"))
        assert ids_of(guide).isdisjoint(walker.bundle.special_ids - {IM_END})

    @pytest.mark.parametrize("more", [0, 1, 40, 243])
    def test_bc159_a_model_may_have_more_ids_than_its_tokenizer(self, bundle: TokenizerBundle, more: int) -> None:
        padded = Walker(bundle, VOCAB_SIZE + more, (IM_END,))
        wanted = ResponseFormat(ResponseFormatKind.REGEX, "(?s).*")
        assert max(ids_of(padded.guide(wanted))) < VOCAB_SIZE
        assert 32 * len(padded.guide(wanted).allowed) >= VOCAB_SIZE + more


def test_a_guide_that_starts_late_is_where_one_that_followed_is(walker: Walker) -> None:
    """As after a core's restart, and in another engine."""
    text = walker.bundle.encode_plain('{"name": "a", "children": [')
    following, late = walker.guide(schema_format(TREE)), walker.guide(schema_format(TREE))
    for token_id in text:
        following.take([token_id])
    late.take(text)
    assert ids_of(late) == ids_of(following) != set()
