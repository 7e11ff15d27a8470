"""Calls of tools by OpenAI's own client. What the model writes is forced by a response format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from headrace import Client
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
    assert len(calls) > 4  # They come in parts.


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
