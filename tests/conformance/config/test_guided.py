"""Section 4's `response_format`: the text is what the format says, or the request is refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from headrace import Client, InvalidRequestError
from headrace.types import FinishReason
from support.contract.places import MODEL

EOS = 2
TOO_MUCH = "takes (too much|too long|more than 1 s of processor time)"
"""By which limit a text is refused that costs too much depends on the machine."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def chained(count: int) -> str:
    """A grammar whose rules lead to each other."""
    rules = "\n".join(f"r{place}: r{place + 1}" for place in range(count))
    return f'start: r0\n{rules}\nr{count}: "a"'


def doubled(count: int) -> str:
    """Rules of which each has the next one twice."""
    rules = "\n".join(f"r{place}: r{place + 1} r{place + 1}" for place in range(count))
    return f'e: r0\n{rules}\nr{count}: "a"'


def say(client: Client, response_format: dict[str, Any], **fields: Any) -> tuple[str, FinishReason | None]:
    """The whole text of a guided request, and why it ended."""
    config = {"max_new_tokens": 200, "eos_token_id": [EOS], "ids": [1, 2, 3], **fields}
    handle, queue = client.start_request(MODEL, response_format=response_format, **config)
    text = "".join(element.text for element in queue)
    reason = queue.finish_reason
    client.release_request(handle)
    return text, reason


@pytest.mark.ranks
@pytest.mark.sim
def test_json_that_satisfies_a_schema(client: Client) -> None:
    wanted = {"type": "json_schema", "json_schema": PERSON}
    for seed in range(5):
        text, reason = say(client, wanted, seed=seed)
        assert reason is FinishReason.EOS
        person = json.loads(text)
        assert list(person) == ["name", "age", "tags"]
        assert 0 <= person["age"] <= 150
        assert set(person["tags"]) <= {"a", "b"}


def test_any_json_object(client: Client) -> None:
    text, reason = say(client, {"type": "json_object"}, seed=1)
    if reason is FinishReason.EOS:
        assert isinstance(json.loads(text), dict)
    else:
        assert reason is FinishReason.MAX_LENGTH
        assert text.startswith("{")


def test_bc153_one_of_several_choices(client: Client) -> None:
    choices = ["get", "get_time", "日本", 'a"b']
    output = {say(client, {"type": "choice", "choices": choices}, seed=seed, temperature=50.0) for seed in range(40)}
    assert output == {(choice, FinishReason.EOS) for choice in choices}


@pytest.mark.parametrize(
    ("response_format", "pattern"),
    [
        ({"type": "regex", "regex": r"[a-f]{3}-[0-9]{2}"}, r"[a-f]{3}-[0-9]{2}"),
        ({"type": "grammar", "text": 'start: "x" /[0-9]{1,3}/ ("y" | "z")'}, r"x[0-9]{1,3}[yz]"),
        ({"type": "grammar", "text": 'root ::= "x" [0-9] end\nend ::= "y" | "z"', "syntax": "EBNF"}, r"x[0-9][yz]"),
    ],
)
@pytest.mark.sim
def test_expressions_and_grammars(client: Client, response_format: dict[str, Any], pattern: str) -> None:
    text, reason = say(client, response_format, seed=3)
    assert re.fullmatch(pattern, text)
    assert reason is FinishReason.EOS


def test_structural_tags_in_both_forms(client: Client) -> None:
    structures = [{"begin": "<p>", "schema": PERSON, "end": "</p>"}]
    older = {"type": "structural_tag", "triggers": ["<p"], "structures": structures}
    handle, queue = client.start_request(MODEL, ids=[1, 2, 3], max_new_tokens=1, response_format=older)
    echoed = queue.request.effective_config["response_format"]
    client.release_request(handle)
    assert [json.loads(one["schema"]) for one in echoed["structural_tag"]["structures"]] == [PERSON]

    part = {"begin": "<p>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</p>"}
    tags = {
        "type": "triggered_tags",
        "triggers": ["<p"],
        "tags": [part],
        "at_least_one": True,
        "stop_after_first": True,
    }
    text, reason = say(client, {"type": "structural_tag", "format": tags}, seed=4)
    assert reason is FinishReason.EOS
    assert list(json.loads(text.removeprefix("<p>").removesuffix("</p>"))) == ["name", "age", "tags"]


def test_a_complete_text_that_eos_cannot_end_has_no_token_left(client: Client) -> None:
    wanted = {"type": "choice", "choices": ["yes"]}
    assert say(client, wanted, ignore_eos=True) == ("yes", FinishReason.NO_TOKEN_LEFT)
    assert say(client, wanted, min_new_tokens=50) == ("yes", FinishReason.NO_TOKEN_LEFT)


def test_a_seed_gives_the_same_guided_text(client: Client) -> None:
    wanted = {"type": "json_schema", "json_schema": PERSON}
    assert say(client, wanted, seed=7) == say(client, wanted, seed=7) != say(client, wanted, seed=8)


@pytest.mark.sim
def test_guided_and_free_requests_do_not_touch_each_other(client: Client) -> None:
    free = {"ids": [5, 6], "max_new_tokens": 60, "seed": 1, "ignore_eos": True}
    handle, queue = client.start_request(MODEL, **free)
    alone = [token for element in queue for token in element.ids_from_generate]
    client.release_request(handle)
    handle, queue = client.start_request(MODEL, **free)
    assert say(client, {"type": "choice", "choices": ["yes"]})[0] == "yes"
    assert [token for element in queue for token in element.ids_from_generate] == alone
    client.release_request(handle)


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": '{"type":"strng"}'},
        {"type": "json_schema", "json_schema": "not JSON"},
        {"type": "json_schema", "json_schema": '{"not": {}}'},
        {"type": "json_schema", "json_schema": '{"enum": []}'},
        {"type": "regex", "regex": "[a-"},
        {"type": "regex", "regex": "a" * 70_000},
        {"type": "choice", "choices": [""]},
        {"type": "grammar", "text": "start: absent"},
        {"type": "structural_tag", "triggers": ["<f"], "structures": []},
        {"type": "structural_tag", "format": {"type": "unknown"}},
    ],
)
def test_bc143_what_cannot_be_compiled_is_refused(client: Client, response_format: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        say(client, response_format)
    assert caught.value.reason == "BAD_RESPONSE_FORMAT"
    assert "response_format" in str(caught.value)
    assert say(client, {"type": "choice", "choices": ["yes"]})[0] == "yes"


@pytest.mark.parametrize(
    ("response_format", "why"),
    [
        ({"type": "regex", "regex": "(a{1000}){1000}"}, TOO_MUCH),
        ({"type": "json_schema", "json_schema": {"type": "string", "pattern": "^(a{1000}){700}$"}}, TOO_MUCH),
        ({"type": "json_schema", "json_schema": '{"items":' * 200 + "{}" + "}" * 200}, "nested 201 deep"),
        ({"type": "grammar", "text": chained(3000)}, "chained too deep"),
        ({"type": "grammar", "text": "start: e\n" + doubled(60)}, f"too ambiguous|{TOO_MUCH}"),
    ],
    ids=["regex", "pattern", "nested", "chained", "doubled"],
)
def test_b2_what_would_fail_in_the_core_is_refused_at_the_start(
    client: Client, response_format: dict[str, Any], why: str
) -> None:
    """And costs nobody else anything: the next request is served."""
    with pytest.raises(InvalidRequestError, match=why) as caught:
        say(client, response_format)
    assert caught.value.reason == "BAD_RESPONSE_FORMAT"
    assert say(client, {"type": "choice", "choices": ["yes"]})[0] == "yes"


def test_n04_a_format_that_is_not_known_is_a_warning(client: Client) -> None:
    wanted = {"type": "json_schema", "json_schema": {"type": "string", "format": "path", "maxLength": 3}}
    handle, queue = client.start_request(MODEL, ids=[1], max_new_tokens=2, response_format=wanted)
    (warning,) = [one for one in queue.request.warnings if one.field == "config.response_format"]
    assert "format path is not checked" in warning.message
    client.release_request(handle)


def test_a_grammar_of_the_other_notation_is_told_so(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match='needs "syntax": "EBNF"'):
        say(client, {"type": "grammar", "text": 'root ::= "x"'})


@pytest.mark.parametrize(
    "response_format", [{"type": "xml"}, {"type": "json_schema", "schema": {}}, {"jsonschema": {}}, {}]
)
def test_bc152_a_misspelt_format_is_refused(client: Client, response_format: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="response_format"):
        say(client, response_format)


def test_the_effective_config_shows_the_format(client: Client) -> None:
    wanted = {"type": "regex", "regex": "a+"}
    handle, queue = client.start_request(MODEL, ids=[1], max_new_tokens=2, response_format=wanted)
    assert queue.request.effective_config["response_format"]["regex"] == "a+"
    client.release_request(handle)
