"""What a guide allows is what its format says, and every text that it lets end matches."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import ResponseFormat, ResponseFormatKind
from headrace_engine.guided import vocabulary as vocabulary_module
from headrace_engine.guided.grammar import MAX_BYTES, advice, grammar_of
from headrace_engine.guided.guide import GuideFailed
from headrace_engine.guided.vocabulary import MAX_KEPT, Vocabulary
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import TokenizerBundle, load_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits
from tiny_models import VOCAB_SIZE, make_tiny_llama
from unit.guided.walks import Walker, ids_of

IM_END = 2
CHOICES = ("get", "get_time", "get_weather", "日本", 'a"b', "line\nbreak", "C:\\x")
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"enum": ["a", "b"]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> TokenizerBundle:
    return load_tokenizer(open_model(str(make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))))


@pytest.fixture(scope="module")
def walker(bundle: TokenizerBundle) -> Walker:
    return Walker(bundle, VOCAB_SIZE, (IM_END,))


def schema_format(schema: Any) -> ResponseFormat:
    return ResponseFormat(ResponseFormatKind.JSON_SCHEMA, json.dumps(schema))


def tool(number: int) -> dict[str, Any]:
    """The schema of a call of one tool."""
    kinds = [{"type": "boolean"}, {"type": "integer", "maximum": 9, "minimum": 0}, {"enum": ["north", "south"]}]
    parameters = {f"parameter_{place}": kinds[(place + number) % len(kinds)] for place in range(4)}
    arguments = {"type": "object", "properties": parameters, "required": [*parameters], "additionalProperties": False}
    fields = {"name": {"const": f"tool_{number}"}, "arguments": arguments}
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def refusal(walker: Walker, wanted: ResponseFormat) -> str:
    """Why a format is refused."""
    with pytest.raises(InvalidArgument) as caught:
        walker.vocabulary.check(grammar_of(wanted), advice(wanted))
    assert caught.value.reason == "BAD_RESPONSE_FORMAT"
    assert [violation.field for violation in caught.value.violations] == ["config.response_format"]
    return caught.value.message


class TestChoices:
    def test_bc153_always_exactly_one_is_said_and_each_can_be(self, walker: Walker) -> None:
        wanted = ResponseFormat(ResponseFormatKind.CHOICE, choices=CHOICES)
        said = [walker.draw(wanted, seed) for seed in range(300)]
        assert all(walk.complete for walk in said)
        assert set(Counter(walk.text.decode() for walk in said)) == set(CHOICES)

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
        said = [walker.draw(wanted, seed) for seed in range(20)]
        assert all(re.fullmatch(rb"ab[0-9]+[xy]", walk.text) for walk in said if walk.complete)
        assert any(walk.complete for walk in said)

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

    def test_bc150_a_schema_in_a_wrapper_is_refused_and_never_a_schema_for_anything(self, walker: Walker) -> None:
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
def test_what_is_said_under_a_generated_schema_satisfies_it(walker: Walker, schema: Any, seed: int) -> None:
    walk = walker.draw(schema_format(schema), seed, most=400)
    if walk.complete:
        jsonschema.validate(json.loads(walk.text), schema)


class TestLimits:
    def test_a_format_has_a_size(self, walker: Walker) -> None:
        longest = "a" * MAX_BYTES
        assert walker.vocabulary.check(grammar_of(ResponseFormat(ResponseFormatKind.REGEX, longest))) == []
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
        with pytest.raises(GuideFailed, match="response_format"):
            for seed in range(10):
                narrow.draw(schema_format(TREE), seed)

    def test_bc158_calls_of_128_tools_are_compiled_once(self, walker: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each with four parameters: what is said is a call of one of them, and the next request finds it compiled."""
        monkeypatch.setattr(vocabulary_module, "LLMatcher", compiler := Mock(wraps=LLMatcher))
        kept = Walker(walker.bundle, VOCAB_SIZE, (IM_END,))
        wanted = schema_format({"anyOf": [tool(number) for number in range(128)]})
        walk = kept.draw(wanted, 0)
        call = json.loads(walk.text)
        assert call["arguments"].keys() == {f"parameter_{number}" for number in range(4)}
        kept.draw(wanted, 1)
        assert compiler.call_count == 1

    def test_no_more_grammars_are_kept_than_that(self, walker: Walker, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled: list[str] = []

        def noting(tokenizer: Any, grammar: str, **options: Any) -> LLMatcher:
            compiled.append(grammar)
            return LLMatcher(tokenizer, grammar, **options)

        monkeypatch.setattr(vocabulary_module, "LLMatcher", noting)
        vocabulary = Vocabulary(walker.bundle, VOCAB_SIZE)
        grammars = [
            grammar_of(ResponseFormat(ResponseFormatKind.REGEX, f"a{{{number}}}")) for number in range(MAX_KEPT + 1)
        ]
        for grammar in grammars:
            vocabulary.check(grammar)
            vocabulary.check(grammars[0])
        assert compiled == grammars, "what was used lately is kept"
        vocabulary.check(grammars[1])
        assert compiled == [*grammars, grammars[1]], "what was used least is not"


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


@pytest.mark.parametrize(
    "grammar",
    [
        *(grammar_of(wanted) for wanted in (ResponseFormat(ResponseFormatKind.JSON_OBJECT), schema_format(TREE))),
        *(grammar_of(ResponseFormat(ResponseFormatKind.REGEX, text)) for text in ("a|b", "(a|b", "a{60000}")),
        'start: <|im_start|> "x"', 'start: <|nothing|> "x"', "start: <[383]>", "start: <[1000]>", 'start: "a" | other',
    ],
    ids=range(10),
)  # fmt: skip
def test_without_all_ids_the_same_grammars_can_be_compiled(bundle: TokenizerBundle, grammar: str) -> None:
    def verdict(vocabulary: Vocabulary) -> str | list[str]:
        try:
            return vocabulary.check(grammar)
        except InvalidArgument as error:
            return error.message

    short, whole = Vocabulary(bundle, VOCAB_SIZE, short=True), Vocabulary(bundle, VOCAB_SIZE)
    assert verdict(short) == verdict(whole)


def test_a_guide_that_starts_late_is_where_one_that_followed_is(walker: Walker) -> None:
    """As after a core's restart, and in another engine."""
    text = walker.bundle.encode_plain('{"name": "a", "children": [')
    following, late = walker.guide(schema_format(TREE)), walker.guide(schema_format(TREE))
    for token_id in text:
        following.take([token_id])
    late.take(text)
    assert ids_of(late) == ids_of(following) != set()
