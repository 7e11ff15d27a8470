"""A guide allows exactly what its format matches, and every text that may end matches."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import jsonschema
import pytest
from headrace_engine.request_parts import ResponseFormat, ResponseFormatKind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models.guided_walks import TREE, Walker, ids_of, refusal, schema_format
from support.models.tiny_tokenizer import VOCAB_SIZE

CHOICES = ("get", "get_time", "get_weather", "日本", 'a"b', "line\nbreak", "C:\\x")


class TestChoices:
    def test_bc153_always_exactly_one_is_said_and_each_can_be(self, walker: Walker) -> None:
        wanted = ResponseFormat(ResponseFormatKind.CHOICE, choices=CHOICES)
        output = [walker.draw(wanted, seed) for seed in range(300)]
        assert all(walk.complete for walk in output)
        assert set(Counter(walk.text.decode() for walk in output)) == set(CHOICES)

    @pytest.mark.parametrize(("choices", "why"), [((), "no strings"), (("a", ""), "empty"), (("a", "b", "a"), "twice")])
    def test_empty_and_equal_strings_are_refused(self, walker: Walker, choices: tuple[str, ...], why: str) -> None:
        assert why in refusal(walker, ResponseFormat(ResponseFormatKind.CHOICE, choices=choices))


class TestExpressions:
    @pytest.mark.parametrize("pattern", [r"[a-z]{3}-[0-9]{4}", r"(yes|no)( maybe)?", r"\x41.", "é+x"])
    def test_a_text_matches_from_its_first_to_its_last_character(self, walker: Walker, pattern: str) -> None:
        for seed in range(20):
            walk = walker.draw(ResponseFormat(ResponseFormatKind.REGEX, pattern), seed)
            if walk.complete:
                assert re.fullmatch(pattern, walk.text.decode())

    @pytest.mark.parametrize("pattern", ["[a-", "(", "a{5,2}", r"(?=a)b", r"(a)\1", "a" * (1 << 20)])
    def test_bc155_what_is_no_expression_is_refused(self, walker: Walker, pattern: str) -> None:
        message = refusal(walker, ResponseFormat(ResponseFormatKind.REGEX, pattern))
        assert len(message) < 500


class TestGrammars:
    EBNF = 'root ::= "ab" [0-9]+ end\nend ::= "x" | "y"'
    LARK = 'start: "ab" /[0-9]+/ end\nend: "x" | "y"'

    @pytest.mark.parametrize(("text", "ebnf"), [(EBNF, True), (LARK, False)])
    def test_a_text_is_derived(self, walker: Walker, text: str, ebnf: bool) -> None:
        wanted = ResponseFormat(ResponseFormatKind.GRAMMAR, text, ebnf=ebnf)
        output = [walker.draw(wanted, seed) for seed in range(20)]
        assert all(re.fullmatch(rb"ab[0-9]+[xy]", walk.text) for walk in output if walk.complete)
        assert any(walk.complete for walk in output)

    @pytest.mark.parametrize(
        ("text", "ebnf"),
        [
            ("root", True),
            ('start ::= "a"', True),  # The library wants a rule "root", and says so with a plain Exception.
            ("start", False),
            ("start: absent", False),
            ("", False),
            ("start: a\na: b\nb: a", False),
        ],
    )
    def test_what_is_no_grammar_is_refused(self, walker: Walker, text: str, ebnf: bool) -> None:
        message = refusal(walker, ResponseFormat(ResponseFormatKind.GRAMMAR, text, ebnf=ebnf))
        assert "looks like" not in message

    @pytest.mark.parametrize(
        ("text", "ebnf", "hint"),
        [
            (EBNF, False, 'looks like EBNF, which needs "syntax": "EBNF"'),
            ('<root> ::= "a"', False, 'looks like EBNF, which needs "syntax": "EBNF"'),
            (LARK, True, 'looks like Lark, which is taken without "syntax": "EBNF"'),
        ],
    )
    def test_the_other_notation_is_pointed_out(self, walker: Walker, text: str, ebnf: bool, hint: str) -> None:
        assert hint in refusal(walker, ResponseFormat(ResponseFormatKind.GRAMMAR, text, ebnf=ebnf))


class TestJson:
    def test_any_object(self, walker: Walker) -> None:
        complete = [
            walk
            for seed in range(100)
            if (walk := walker.draw(ResponseFormat(ResponseFormatKind.JSON_OBJECT), seed)).complete
        ]
        assert complete
        assert all(isinstance(json.loads(walk.text), dict) for walk in complete)

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "strng"},
            {"enum": []},
            {"type": "string", "minLength": 5, "maxLength": 2},
            {"type": "array", "items": 5},
            {"$defs": {"x": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
            False,
        ],
    )
    def test_bc143_a_schema_that_makes_no_sense_is_refused(self, walker: Walker, schema: Any) -> None:
        refusal(walker, schema_format(schema))

    def test_bc150_a_schema_in_a_wrapper_is_refused(self, walker: Walker) -> None:
        wrapped = {"name": "answer", "strict": True, "schema": {"type": "integer"}}
        why = walker.why_not(schema_format(wrapped))
        assert "only name, schema, strict: give the schema itself" in why
        assert not walker.why_not(schema_format({}))
        assert not walker.why_not(schema_format({"description": "anything"}))

    def test_the_schema_true_allows_any_value(self, walker: Walker) -> None:
        assert not walker.why_not(schema_format(True))
        complete = [walk.text for seed in range(40) if (walk := walker.draw(schema_format(True), seed)).complete]
        assert len({type(json.loads(text)) for text in complete}) > 1

    @pytest.mark.parametrize("text", ["", "not JSON", "[1]", '"string"', "null", "{", "[" * 5000 + "]" * 5000])
    def test_bc143_what_is_no_schema_is_refused(self, walker: Walker, text: str) -> None:
        refusal(walker, ResponseFormat(ResponseFormatKind.JSON_SCHEMA, text))

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ('{"type": "object", "type": "array"}', "json_schema gives type twice"),
            ('{"properties": {"a": {"enum": [1], "enum": [2]}}}', "json_schema gives properties.a.enum twice"),
            ('{"minimum": NaN}', "json_schema has NaN, which is no number of JSON"),
            ('{"maximum": 1e999}', "json_schema has the number 1e999, which is out of range"),
        ],
    )
    def test_what_a_schema_would_lose_is_refused_with_its_path(self, walker: Walker, text: str, why: str) -> None:
        assert why in refusal(walker, ResponseFormat(ResponseFormatKind.JSON_SCHEMA, text))

    def test_bc146_a_schema_that_is_too_deep_is_refused(self, walker: Walker) -> None:
        refusal(walker, ResponseFormat(ResponseFormatKind.JSON_SCHEMA, '{"items":' * 2000 + "{}" + "}" * 2000))

    def test_bc146_a_recursive_schema_gives_valid_trees(self, walker: Walker) -> None:
        complete = [walk.text for seed in range(200) if (walk := walker.draw(schema_format(TREE), seed)).complete]
        assert len(complete) > 20
        assert max(text.count(b"children") for text in complete) > 1
        for text in complete:
            jsonschema.validate(json.loads(text), TREE)

    def test_bc148_white_space_comes_to_an_end(self, walker: Walker) -> None:
        """No more than a line break and 16 spaces, however much a model likes them."""
        guide = walker.guide(ResponseFormat(ResponseFormatKind.JSON_OBJECT))
        blanks = {
            token_id
            for token_id in range(VOCAB_SIZE)
            if walker.bundle.token_bytes(token_id) in (b" ", b"\n", b"\r", b"\t")
        }
        guide.take(walker.bundle.encode_plain("{"))
        count = 0
        while wanted := blanks & ids_of(guide):
            guide.take([max(wanted)])
            count += 1
            assert count <= 18
        assert ids_of(guide)

    @pytest.mark.parametrize(
        "text",
        [
            '{"a": 1}',
            '{"a":1,"b":[true,false,null]}',
            '{"a": -1.5e+10}',
            r'{"a": "\u00e9\ud83d\ude00\n\\\""}',
            '{\r\n\t"a": {}\r\n}',
            "{}",
        ],
    )
    def test_bc149_valid_documents_can_be_said(self, walker: Walker, text: str) -> None:
        assert json.loads(text) is not None
        assert walker.accepts(ResponseFormat(ResponseFormatKind.JSON_OBJECT), text)

    @pytest.mark.parametrize(
        "text",
        [
            '{"a": 01}',
            "{a: 1}",
            '{"a": 1,}',
            "{'a': 1}",
            '{"a": "\n"}',
            r'{"a": "\x41"}',
            '{"a": NaN}',
            "[1]",
            '{"a"}',
            '{"a": +1}',
        ],
    )
    def test_bc149_invalid_documents_cannot(self, walker: Walker, text: str) -> None:
        assert not walker.accepts(ResponseFormat(ResponseFormatKind.JSON_OBJECT), text)

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
            {"type": "number", "multipleOf": 5},
            {"not": {"type": "string"}},
            {"if": {"type": "string"}, "then": {"minLength": 1}},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
            {"type": "array", "prefixItems": [{"enum": [1]}, {"enum": [2]}], "items": False},
            {"type": "array", "items": {"enum": [1]}, "minItems": 2, "maxItems": 3},
            {"type": "array", "contains": {"enum": [1]}},
            {"type": "object", "minProperties": 1},
            {"type": "object", "propertyNames": {"pattern": "^a$"}},
            {"type": "object", "dependentRequired": {"a": ["b"]}},
            {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
            {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
            {"anyOf": [{"const": 1}, {"const": "x"}]},
            {"oneOf": [{"const": 1}, {"const": "x"}]},
            {"type": ["integer", "null"]},
            {"type": "string", "pattern": "^[ab]{2,4}$"},
            {"type": "object", "properties": {"a": {"const": 1}}, "unevaluatedProperties": False},
            {"x-guidance": {"lenient": True}, "not": {"type": "string"}},
        ],
    )
    def test_bc150_every_keyword_is_followed_or_refused(self, walker: Walker, schema: Any) -> None:
        why = walker.why_not(schema_format(schema))
        if why:
            assert any(word in why for word in schema)
            return
        complete = [walk.text for seed in range(30) if (walk := walker.draw(schema_format(schema), seed)).complete]
        assert complete
        for text in complete:
            jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-99, 99),
        st.integers(0, 99),
    ),
    st.builds(
        lambda few, more: {"type": "string", "minLength": few, "maxLength": few + more},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.text(max_size=5) | st.integers(-9, 9), min_size=1, max_size=4, unique_by=repr),
    ),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(properties: dict[str, Any], required: int) -> dict[str, Any]:
        names = sorted(properties)[:required]
        return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}

    return st.builds(
        build, st.dictionaries(st.text("abcé", min_size=1, max_size=3), inner, max_size=4), st.integers(0, 4)
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3))


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: _objects(inner) | _arrays(inner) | st.builds(lambda *of: {"anyOf": list(of)}, inner, inner),
    max_leaves=8,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_text_under_a_generated_schema_satisfies_it(walker: Walker, schema: Any, seed: int) -> None:
    walk = walker.draw(schema_format(schema), seed, most=400)
    if walk.complete:
        jsonschema.validate(json.loads(walk.text), schema)
