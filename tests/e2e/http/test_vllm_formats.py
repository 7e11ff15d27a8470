"""What answers must look like, in vLLM's words: each is one of our response formats, or an error that names it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

MESSAGES: Any = [{"role": "user", "content": "Hello world?"}]
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}},
    "required": ["size"],
    "additionalProperties": False,
}
LARK = 'start: ("a" | "b") "c"'
EBNF = 'root ::= select " from " table\nselect ::= "SELECT"\ntable ::= "table_1" | "table_2"'
TAG: Any = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<p>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</p>",
    },
}
OLDER_TAG: Any = {
    "type": "structural_tag",
    "triggers": ["<p"],
    "structures": [{"begin": "<p>", "schema": SCHEMA, "end": "</p>"}],
}
SAME: list[tuple[str, Any, Any]] = [
    ("json", SCHEMA, {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
    ("json", json.dumps(SCHEMA), {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}),
    ("regex", "[a-c]{7}", {"type": "regex", "regex": "[a-c]{7}"}),
    ("choice", ["positive", "negative"], {"type": "choice", "choices": ["positive", "negative"]}),
    ("grammar", LARK, {"type": "grammar", "grammar": LARK, "syntax": "lark"}),
    ("grammar", EBNF, {"type": "grammar", "grammar": EBNF, "syntax": "ebnf"}),
    ("structural_tag", json.dumps(TAG), TAG),
    ("structural_tag", json.dumps(OLDER_TAG), OLDER_TAG),
    ("json_object", True, {"type": "json_object"}),
]
"""A kind of vLLM's, its value, and the response format that says the same."""


def chat(client: openai.OpenAI, **extra: Any) -> str:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=2, max_tokens=60, extra_body={"ignore_eos": False, **extra}
    )
    return answer.choices[0].message.content or ""


def complete(client: openai.OpenAI, **extra: Any) -> str:
    answer = client.completions.create(model="tiny", prompt="Hello", seed=2, max_tokens=60, extra_body=extra)
    return answer.choices[0].text


def fields_of(kind: str, value: Any) -> list[dict[str, Any]]:
    """Return the ways in which vLLM's users have said it."""
    found: list[dict[str, Any]] = [{"structured_outputs": {kind: value, "disable_any_whitespace": False}}]
    if kind == "structural_tag":
        found.append({kind: value})
    elif kind != "json_object":
        found.append({f"guided_{kind}": value, "guided_decoding_backend": "auto"})
    return found


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(("kind", "value", "same"), SAME)
def test_each_is_a_response_format(client: openai.OpenAI, ask: Any, kind: str, value: Any, same: Any) -> None:
    expected = ask(client, response_format=same)
    for fields in fields_of(kind, value):
        assert ask(client, **fields) == expected


def test_an_answer_is_what_was_asked_for(client: openai.OpenAI) -> None:
    free = {"type": "text"}
    assert json.loads(chat(client, structured_outputs={"json": SCHEMA}, response_format=free)) in (
        {"size": "small"},
        {"size": "large"},
    )
    assert chat(client, guided_choice=["positive", "negative"]) in ("positive", "negative")
    assert complete(client, guided_grammar=EBNF) in ("SELECT from table_1", "SELECT from table_2")
    assert complete(client, structured_outputs={"grammar": LARK}) in ("ac", "bc")


@pytest.mark.parametrize(
    ("fields", "field", "shown"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "none of its kinds"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "none of its kinds"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "json and regex"),
        ({"structured_outputs": {"choices": ["a"]}}, "structured_outputs.choices", "is not a known field"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json", "got `int`"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "is not JSON"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "cannot be compiled"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least one"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", ""),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag", "no structural tag"),
        (
            {"structured_outputs": {"structural_tag": '{"type": "structural_tag", "format": {"type": "x"}}'}},
            "structured_outputs.structural_tag",
            "'x'",
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "= true",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "not supported",
        ),
        ({"guided_json": "{"}, "guided_json", "is not JSON"),
        ({"guided_json": {"type": "nothing"}}, "guided_json", "nothing"),
        ({"guided_regex": "["}, "guided_regex", "cannot be compiled"),
        ({"guided_choice": ["a", "a"]}, "guided_choice", ""),
        ({"guided_grammar": "root ::= other"}, "guided_grammar", "other"),
        ({"structural_tag": "[" * 100_000}, "structural_tag", "no structural tag"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "beside guided_regex"),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "a"}},
            "guided_regex",
            "beside structured_outputs.regex",
        ),
        (
            {"guided_json": SCHEMA, "response_format": {"type": "json_object"}},
            "guided_json",
            "beside response_format",
        ),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, "guided_decoding_backend", '= "outlines"'),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
    ],
)
def test_what_is_wrong_is_named(client: openai.OpenAI, fields: Any, field: str, shown: str) -> None:
    for ask in (chat, complete):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, **fields)
        assert caught.value.param == field
        body: Any = caught.value.body
        assert body["message"].startswith(field)
        assert shown in body["message"]
