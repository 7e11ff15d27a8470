"""Response formats and other messages within messages, from keywords."""

from __future__ import annotations

from typing import Any

import pytest
from headrace import InvalidRequestError
from headrace_proto.v1 import generation_pb2, runtime_pb2
from unit.client.values.filled import config, runtime

NESTED: Any = []
for _ in range(100_000):
    NESTED = [NESTED]


class TestResponseFormat:
    """{"type": NAME} and the fields of that form."""

    @pytest.mark.parametrize(
        ("given", "kind", "check"),
        [
            ({"type": "json_object"}, "json_object", lambda f: True),
            ({"type": "regex", "regex": "a+"}, "regex", lambda f: f.regex == "a+"),
            ({"regex": "a+"}, "regex", lambda f: f.regex == "a+"),
            ({"type": "choice", "choices": ["a", "b"]}, "choice", lambda f: list(f.choice.choices) == ["a", "b"]),
            ({"type": "choice", "choice": ["a", "b"]}, "choice", lambda f: list(f.choice.choices) == ["a", "b"]),
            (
                {"type": "grammar", "text": "x", "syntax": "ebnf"},
                "grammar",
                lambda f: (f.grammar.text, f.grammar.syntax) == ("x", generation_pb2.GRAMMAR_SYNTAX_EBNF),
            ),
            (
                {"type": "json_schema", "json_schema": {"type": "object"}},
                "json_schema",
                lambda f: '"object"' in f.json_schema,
            ),
            ({"type": "json_schema", "json_schema": "{}"}, "json_schema", lambda f: f.json_schema == "{}"),
        ],
    )
    def test_forms(self, given: dict[str, Any], kind: str, check: Any) -> None:
        response_format = config(response_format=given).response_format
        assert response_format.WhichOneof("format") == kind
        assert check(response_format)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"type": "xml"}, "must be one of json_object, json_schema, regex, choice, grammar"),
            ({"type": ["regex"]}, "must be one of json_object"),
            ({"type": "regex"}, 'given with the key "regex"'),
            ({"type": "json_schema", "json_schema": {1, 2}}, "serializable as JSON"),
            ({"regex": "a", "choice": ["b"]}, "one of these, not several"),
            ({"type": "regex", "regex": "a", "choice": ["b"]}, "one of these, not several"),
            ("json_object", "a mapping"),
            (
                {"type": "regex", "regex": "a", "choices": ["b"]},
                "response_format: unknown key 'choices'; the keys are type, regex",
            ),
            ({"type": "regex", "regex": None}, 'given with the key "regex"'),
            ({"type": "regex", "regex": 5}, r"response_format\.regex = 5: must be a string"),
            ({"type": "regex", "regex": "a", 1: 2}, "response_format: unknown key 1;"),
            (
                {"type": "json_object", "strict": True},
                r"response_format\.json_object: unknown key 'strict'; it takes none",
            ),
            ({"type": "choice", "choice": ["a"], "text": "b"}, "unknown key 'text'; the keys are type, choice"),
            ({"type": "choice", "choices": ["a", 5]}, r"choices\[1\] = 5: must be a string"),
            ({"type": "choice", "choices": "ab"}, "must be a list"),
            ({"type": "grammar", "text": "a", "syntax": "XML"}, "syntax = 'XML': must be one of LARK, EBNF"),
            (
                {"type": "grammar", "text": "a", "sintax": "LARK"},
                "unknown key 'sintax'; .*; did you mean syntax",
            ),
            ({"jsonschema": {}}, "unknown key 'jsonschema'; .*; did you mean json_schema"),
            ({"type": "json_schema", "json_schema": {"title": "\ud800"}}, "text without lone surrogates"),
            ({"type": "json_schema", "json_schema": NESTED}, "nested less deeply"),
        ],
        ids=range(20),
    )
    def test_b8_what_is_refused(self, given: Any, words: str) -> None:
        with pytest.raises(InvalidRequestError, match=words):
            config(response_format=given)


def test_rope_scaling_has_a_type_of_its_own() -> None:
    message = runtime(rope_scaling={"type": "yarn", "factor": 4})
    assert message.rope_scaling.type == runtime_pb2.ROPE_SCALING_TYPE_YARN
    assert message.rope_scaling.factor == 4.0


def test_media_are_given_as_a_list() -> None:
    message = config(mm_info=[{"data": b"\x89PNG", "mime_type": "image/png"}])
    assert message.mm_info.items[0].data == b"\x89PNG"


def test_a_message_of_the_wire_is_taken_as_it_is() -> None:
    lease = generation_pb2.Lease()
    lease.running.FromSeconds(5)
    assert config(lease=lease).lease == lease
