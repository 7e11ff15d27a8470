"""Calls of tools by OpenAI's own client. What the model writes is forced by a response format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from headrace import Client
from support.contract.draws import until_both
from support.servers.processes import Server

TEMPLATE = Path(__file__).parents[2] / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja"
USER: Any = {"role": "user", "content": "How is the weather?"}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"place": {}}}},
    }
]
CALL = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"place": "[a-z]{3,6}"\}\}\n</tool_call>'
FORCED: Any = {"response_format": {"type": "regex", "regex": f"Let me see\\.\n{CALL}\n{CALL}"}}


@pytest.fixture(scope="module")
def caller(shared_engine: Server, tiny: Path) -> Iterator[str]:
    """A model whose template shows tools as Qwen 2.5 does."""
    with Client(shared_engine.address) as client:
        client.install_model(
            "caller", path=str(tiny), chat_template=TEMPLATE.read_text(encoding="utf-8"), max_batch=4, num_threads=1
        )
        client.start_model("caller")
        yield "caller"
        client.stop_model("caller")
        client.release_model("caller")


@pytest.fixture
def asked(caller: str) -> dict[str, Any]:
    """What each test asks."""
    return {"model": caller, "messages": [USER], "tools": TOOLS, "max_tokens": 300, "extra_body": FORCED}


@pytest.mark.parametrize("named", [False, True])
def test_calls_are_parted_from_the_text(client: openai.OpenAI, asked: dict[str, Any], named: bool) -> None:
    if named:
        asked["extra_body"] = FORCED | {"tool_parser": "hermes"}
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "").strip() == "Let me see."
    calls: Any = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather", "get_weather"]
    assert all(set(json.loads(call.function.arguments)) == {"place"} for call in calls)
    assert len({call.id for call in calls}) == 2


def test_a_stream_has_the_same_calls(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    whole: Any = client.chat.completions.create(**asked, seed=4).choices[0].message
    text, calls, finish = "", [], None
    with client.chat.completions.create(**asked, seed=4, stream=True) as stream:
        for chunk in stream:
            (choice,) = chunk.choices
            text += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
            finish = choice.finish_reason or finish
    assert (text, finish) == (whole.content, "tool_calls")
    begun = [call for call in calls if call.id]
    assert [(call.index, call.type, call.function.name, call.function.arguments) for call in begun] == [
        (number, "function", "get_weather", "") for number in (0, 1)
    ]
    arguments = ["".join(call.function.arguments for call in calls if call.index == number) for number in (0, 1)]
    assert arguments == [call.function.arguments for call in whole.tool_calls]
    assert len(calls) >= 4  # The name comes before the arguments.


def test_a_conversation_goes_on_with_results(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    said: Any = client.chat.completions.create(**asked).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in said.tool_calls]
    asked["messages"] = [USER, said.model_dump(), *results]
    answer = client.chat.completions.create(**(asked | {"extra_body": {}, "max_tokens": 5, "tool_choice": "none"}))
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_without_tools_all_is_text(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    for more in ({"tools": []}, {"tool_choice": "none"}):
        (choice,) = client.chat.completions.create(**(asked | more)).choices
        assert choice.message.tool_calls is None
        assert (choice.message.content or "").count("<tool_call>") == 2


def test_thoughts_are_parted_where_it_is_asked_for(client: openai.OpenAI, caller: str) -> None:
    forced = {"response_format": {"type": "regex", "regex": r"<think>\n[a-z]{3,6}\n</think>\n\nBlue\."}}
    asked: Any = {"model": caller, "messages": [USER], "max_tokens": 100, "seed": 3}
    plain = client.chat.completions.create(**asked, extra_body=forced).choices[0].message.content or ""
    thought = plain.removeprefix("<think>").partition("</think>")[0]
    asked["extra_body"] = forced | {"separate_reasoning": True}
    message: Any = client.chat.completions.create(**asked).choices[0].message
    assert (message.reasoning_content, message.content) == (thought, "Blue.")
    thoughts, text = "", ""
    with client.chat.completions.create(**asked, stream=True) as stream:
        for chunk in stream:
            delta: Any = chunk.choices[0].delta
            thoughts += getattr(delta, "reasoning_content", None) or ""
            text += delta.content or ""
    assert (thoughts, text) == (thought, "Blue.")


def test_json_leaves_no_place_for_a_thought(client: openai.OpenAI, caller: str) -> None:
    """The prompt ends within one."""
    begun: Any = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<think>"}]
    more: Any = {"add_generation_prompt": False, "continue_final_message": True, "separate_reasoning": True}
    more |= {"response_format": {"type": "choice", "choices": ['{"a": 1}', '{"a": 2}']}}
    message: Any = client.chat.completions.create(model=caller, messages=begun, extra_body=more).choices[0].message
    assert json.loads(message.content)["a"] in (1, 2)
    assert getattr(message, "reasoning_content", None) is None


SCHEMA: Any = {
    "type": "object",
    "properties": {"place": {"enum": ["Rome", "Bern"]}, "days": {"enum": [1, 2]}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
STRICT: Any = [
    {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "strict": True,
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "function": {"name": "get_time"}}, {"get_time"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                },
            },
            {"get_weather"},
        ),
    ],
)
def test_a_call_that_must_come_comes_and_is_valid(
    client: openai.OpenAI, caller: str, choice: Any, names: set[str], stream: bool
) -> None:
    """The tiny model's weights are random: without a grammar it would call nothing."""
    asked: Any = {"model": caller, "messages": [USER], "tools": STRICT, "tool_choice": choice, "seed": 3}
    asked |= {"max_tokens": 2000, "parallel_tool_calls": False}
    if stream:
        with client.chat.completions.stream(**asked) as events:
            (answer,) = events.get_final_completion().choices
    else:
        (answer,) = client.chat.completions.create(**asked).choices
    assert answer.finish_reason == "tool_calls"
    calls: Any = answer.message.tool_calls
    assert len(calls) == 1
    assert calls[0].function.name in names
    arguments = json.loads(calls[0].function.arguments)
    if calls[0].function.name == "get_weather":
        assert arguments["place"] in ("Rome", "Bern")
        assert arguments["days"] in (1, 2)
    else:
        assert arguments == {}


RAIN: Any = {
    "type": "object",
    "properties": {"rain": {"enum": ["some", "<tool_call>"]}, "mm": {"enum": [0, 5]}},
    "required": ["rain", "mm"],
    "additionalProperties": False,
}
OR_JSON: Any = {
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "rain", "schema": RAIN, "strict": True}},
}


def test_choices_that_cannot_be_kept_are_errors(client: openai.OpenAI, caller: str) -> None:
    asked: Any = {"model": caller, "messages": [USER], "tools": STRICT, "tool_choice": "required"}
    for more, words in (
        ({"tools": []}, "tool_choice is set without tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "absent"}}}, '"absent", which is none of the tools'),
        ({"tool_choice": {"type": "function"}}, "needs function"),
        ({"response_format": {"type": "regex", "regex": "a"}}, "tool_choice is enforced by a grammar of its own"),
        (
            {
                **OR_JSON,
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "no"}}},
            },
            "response_format cannot be compiled",
        ),
        ({**OR_JSON, "extra_body": {"tool_parser": "llama3_json"}}, "tools cannot be enforced beside"),
        ({"extra_body": {"tool_parser": "morse"}}, 'tool_parser = "morse" is not known'),
        ({"extra_body": {"tool_parser": "functionary_v32"}}, "have no grammar"),
    ):
        with pytest.raises(openai.BadRequestError, match=re.escape(words)):
            client.chat.completions.create(**(asked | more))


def streamed(stream: Any) -> tuple[str, list[tuple[str, str]], Any]:
    """The text of a stream, its calls, and why it ended."""
    text, calls, finish = "", [], None
    for chunk in stream:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or []:
            name, arguments = calls.pop() if call.index < len(calls) else (call.function.name, "")
            calls.append((name, arguments + (call.function.arguments or "")))
    return text, calls, finish


def test_an_answer_is_valid_calls_or_valid_json(client: openai.OpenAI, caller: str) -> None:
    """The tiny model's weights are random, so both come."""
    asked: Any = {"model": caller, "messages": [USER], "tools": STRICT, **OR_JSON}
    asked |= {"temperature": 2, "max_tokens": 2000}
    seen: set[str] = set()
    for seed in until_both(seen):
        (answer,) = client.chat.completions.create(**asked, seed=seed).choices
        calls: Any = answer.message.tool_calls or []
        with client.chat.completions.create(**asked, seed=seed, stream=True) as stream:
            same = streamed(stream)
        found = [(call.function.name, call.function.arguments) for call in calls]
        assert same == (answer.message.content or "", found, answer.finish_reason)
        if answer.finish_reason == "tool_calls":
            assert found
            assert not answer.message.content
            for name, arguments in found:
                jsonschema.validate(json.loads(arguments), STRICT[name == "get_time"]["function"]["parameters"])
        else:
            assert (answer.finish_reason, found) == ("stop", [])
            jsonschema.validate(json.loads(answer.message.content or ""), RAIN)
        seen.add(answer.finish_reason)
    assert seen == {"tool_calls", "stop"}


def test_json_alone_and_calls_alone_come_as_chosen(client: openai.OpenAI, caller: str) -> None:
    asked: Any = {"model": caller, "messages": [USER], "tools": STRICT, "response_format": {"type": "json_object"}}
    (answer,) = client.chat.completions.create(**asked, tool_choice="none", max_tokens=100, seed=2).choices
    assert (answer.message.content or "").startswith("{")
    (answer,) = client.chat.completions.create(**asked, tool_choice="required", max_tokens=2000, seed=2).choices
    assert answer.finish_reason == "tool_calls"
    assert not answer.message.content


def test_text_around_strict_calls_stays_free(client: openai.OpenAI, caller: str) -> None:
    """What a random model writes begins no call: its text is that without tools' grammar."""
    asked: Any = {"model": caller, "messages": [USER], "max_tokens": 20, "temperature": 0, "tools": STRICT}
    (answer,) = client.chat.completions.create(**asked).choices
    assert answer.finish_reason in ("stop", "length")
    assert answer.message.tool_calls is None
    assert answer.message.content
