"""Calls of tools: answers say how they are parted, and calls are what `tool_choice` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from headrace import Client, InvalidRequestError
from headrace.answers import parts, whole
from headrace.types import AnswerFormat
from support.contract.draws import until_both
from support.contract.places import Place

TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- if tools %}<tool_call></tool_call>{% endif %}{{ messages[0].content }}"""
USER = [{"role": "user", "content": "How is the weather?"}]
PLACE = {"type": "object", "properties": {"place": {"enum": ["Rome", "Bern"]}}, "required": ["place"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": {**PLACE, "additionalProperties": False}}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]

JSON: Any = {"response_format": {"type": "json_object"}}


@pytest.fixture
def caller(client: Client, place: Place) -> Iterator[str]:
    """A model whose template shows tools, and how they are called."""
    client.install_model("caller", path=str(place.folder), chat_template=TEMPLATE, **place.settings)
    client.start_model("caller")
    yield "caller"
    client.stop_model("caller")
    client.release_model("caller")


def test_calls_are_what_the_choice_says(client: Client, caller: str) -> None:
    choice = {"mode": "required", "names": ["weather"], "parallel": False, "strict": ["weather"]}
    for seed in range(3):
        handle, queue = client.start_request(
            caller, messages=USER, tools=TOOLS, tool_choice=choice, seed=seed, eos_token_id=[2], max_new_tokens=200
        )
        assert queue.request.answer_format == AnswerFormat("hermes", "think", thought_open=False)
        answer = whole(parts(queue, TOOLS))
        client.release_request(handle)
        assert answer.text.strip() == ""
        (call,) = answer.calls
        assert call.name == "weather"
        assert json.loads(call.arguments)["place"] in ("Rome", "Bern")


def test_a_format_is_told_where_the_text_has_its_marks(client: Client, caller: str) -> None:
    for more, format_is in (
        ({}, None),
        ({"keep_marks": True}, AnswerFormat("", "think", thought_open=False)),
        ({"tools": TOOLS, "tool_choice": "auto"}, AnswerFormat("hermes", "think", thought_open=False)),
        ({"tools": TOOLS, "tool_choice": "auto", "keep_marks": False}, None),
        (
            {"tools": TOOLS, "tool_choice": "auto", "tool_format": "glm45"},
            AnswerFormat("glm45", "think", thought_open=False),
        ),
        ({"tools": TOOLS, "tool_choice": "none"}, AnswerFormat("", "think", thought_open=False)),
    ):
        handle, queue = client.start_request(caller, messages=USER, max_new_tokens=1, **more)  # type: ignore[arg-type]
        assert queue.request.answer_format == format_is
        if format_is is None:
            with pytest.raises(ValueError, match="keep_marks=True"):
                next(parts(queue))
        client.release_request(handle)


def test_a_format_goes_on_with_no_thought(client: Client, caller: str) -> None:
    begun = [{"role": "user", "content": "Answer in JSON. <think>"}]
    form = {"type": "choice", "choices": ['{"a": 1}']}
    for more, opened in (({}, True), ({"response_format": form}, False)):
        asked: Any = {"messages": begun, "keep_marks": True, "max_new_tokens": 100, **more}
        handle, queue = client.start_request(caller, **asked)
        answer_format = queue.request.answer_format
        assert answer_format is not None
        assert answer_format.thought_open is opened
        answer = whole(parts(queue))
        client.release_request(handle)
    assert (answer.text, answer.thoughts) == ('{"a": 1}', "")


def test_calls_may_come_instead_of_json(client: Client, caller: str) -> None:
    form = {"type": "json_schema", "json_schema": {"enum": [1, {"a": "<tool_call>"}]}}
    asked: Any = {"messages": USER, "tools": TOOLS, "response_format": form, "eos_token_id": [2]}
    asked |= {"tool_choice": {"strict": ["weather"], "names": ["weather"], "parallel": False}, "max_new_tokens": 200}
    seen: set[bool] = set()
    for seed in until_both(seen, least=1):
        handle, queue = client.start_request(caller, seed=seed, temperature=2, **asked)
        assert queue.request.answer_format == AnswerFormat("hermes", "think", thought_open=False, or_json=True)
        assert queue.request.warnings == ()
        answer = whole(parts(queue, TOOLS))
        client.release_request(handle)
        seen.add(bool(answer.calls))
        if answer.calls:
            (call,) = answer.calls
            assert (call.name, answer.text) == ("weather", "")
            assert json.loads(call.arguments)["place"] in ("Rome", "Bern")
        else:
            assert json.loads(answer.text) in (1, {"a": "<tool_call>"})


def test_where_calls_must_come_json_has_no_effect(client: Client, caller: str) -> None:
    choice = {"mode": "required", "names": ["weather"], "parallel": False, "strict": ["weather"]}
    asked: Any = {"messages": USER, "tools": TOOLS, "tool_choice": choice, "eos_token_id": [2], "max_new_tokens": 200}
    handle, queue = client.start_request(caller, seed=1, **asked, **JSON)
    (warning,) = queue.request.warnings
    assert warning.field == "config.response_format"
    assert warning.message.startswith("response_format has no effect:")
    (call,) = whole(parts(queue, TOOLS)).calls
    client.release_request(handle)
    assert call.name == "weather"


def test_warnings_about_schemas_name_what_has_them(client: Client, caller: str) -> None:
    def formatted(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"type": "string", "format": name}}}

    tools = [{"type": "function", "function": {"name": "call", "parameters": formatted("phone")}}]
    asked: Any = {"messages": USER, "tools": tools, "tool_choice": {"strict": ["call"]}, "max_new_tokens": 1}
    of_tools = ("chat.tools", "tools: format phone")
    for schema in (None, formatted("colour")):
        more = {"response_format": {"type": "json_schema", "json_schema": schema}} if schema else {}
        handle, queue = client.start_request(caller, **asked, **more)
        client.release_request(handle)
        found = {(one.field, one.message.partition(" is not")[0]) for one in queue.request.warnings}
        assert found == ({of_tools, ("config.response_format", "json_schema: format colour")} if schema else {of_tools})


def test_without_tools_the_template_shows_none(client: Client, caller: str) -> None:
    shown = client.tokenize(caller, messages=USER, tools=TOOLS).rendered_text or ""
    hidden = client.tokenize(caller, messages=USER, tools=TOOLS, tool_choice="none").rendered_text
    assert "weather" in shown
    assert hidden == client.tokenize(caller, messages=USER).rendered_text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice is set without tools"),
        ({"tool_choice": {"mode": "none", "names": ["time"]}}, "excludes names"),
        ({"tool_choice": {"names": ["absent"]}}, '"absent", which is none of the tools'),
        ({"tool_choice": {"strict": ["absent"]}}, '"absent", which is none of the tools'),
        ({"tool_choice": "required", "response_format": {"type": "regex", "regex": "a"}}, "response_format regex"),
        ({**JSON, "tool_choice": "auto", "tool_format": "llama3_json"}, "tools cannot be enforced beside"),
        ({**JSON, "tool_choice": "auto", "tool_format": "functionary_v32"}, "functionary_v32 have no grammar"),
        ({**JSON, "tool_choice": {"strict": ["time"]}, "keep_marks": False}, "keep_marks is false, without which"),
        ({"tool_choice": "required", "response_format": {"type": "json_schema", "json_schema": 5}}, "response_format"),
        ({"tool_choice": "required", "tool_format": "functionary_v32"}, "functionary_v32 have no grammar"),
        ({"tool_format": "morse"}, 'tool_format = "morse" is not known'),
        ({"tools": ['{"function": {}}'], "tool_choice": "required"}, r"tools\[0\] is no function with a name"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
    ],
)
def test_choices_that_cannot_be_kept_are_refused(client: Client, caller: str, more: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        client.start_request(caller, **{"messages": USER, "tools": TOOLS, **more})
