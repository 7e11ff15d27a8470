"""Calls of functions and thoughts in responses, by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from support.contract.draws import until_both

PLACE: Any = {
    "type": "object",
    "properties": {"place": {"enum": ["Rome", "Bern"]}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": PLACE, "strict": True},
    {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}, "strict": False},
]
CHOICES: list[Any] = [
    {"type": "function", "name": "weather"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
]


@pytest.fixture
def asked(thinker: str) -> dict[str, Any]:
    """What each test asks: the model's weights are random, so a call comes because it must."""
    return {
        "model": thinker,
        "input": "How is the weather?",
        "tools": TOOLS,
        "tool_choice": CHOICES[0],
        "parallel_tool_calls": False,
        "max_output_tokens": 2000,
        "extra_body": {"seed": 11},
    }


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_function_is_called_as_the_choice_says(client: openai.OpenAI, asked: dict[str, Any], choice: Any) -> None:
    response = client.responses.create(**(asked | {"tool_choice": choice}))
    assert response.status == "completed"
    (call,) = calls_of(response)
    assert (call.name, call.status) == ("weather", "completed")
    assert json.loads(call.arguments)["place"] in ("Rome", "Bern")
    assert {item.type for item in response.output} <= {"reasoning", "function_call"}
    assert response.tools[0].name == "weather"  # type: ignore[union-attr]


RAIN: Any = {
    "type": "object",
    "properties": {"rain": {"enum": ["some", "<tool_call>"]}},
    "required": ["rain"],
    "additionalProperties": False,
}


def test_a_response_is_calls_or_json(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    asked |= {"tool_choice": "auto", "tools": TOOLS[:1], "temperature": 2}
    asked["text"] = {"format": {"type": "json_schema", "name": "rain", "schema": RAIN, "strict": True}}
    seen = set()
    for seed in until_both(seen):
        response = client.responses.create(**(asked | {"extra_body": {"seed": seed}}))
        assert response.status == "completed"
        (item,) = response.output
        seen.add(item.type)
        if item.type == "function_call":
            assert json.loads(item.arguments)["place"] in ("Rome", "Bern")
        else:
            assert json.loads(response.output_text)["rain"] in ("some", "<tool_call>")
    assert seen == {"function_call", "message"}


def test_a_stream_has_the_same_items(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    whole = client.responses.create(**asked)
    with client.responses.create(**asked, stream=True) as stream:
        events: list[Any] = list(stream)
    assert events[-1].type == "response.completed"
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    (call,) = calls_of(whole)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert deltas
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == call.arguments
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [item.type for item in added] == [item.type for item in events[-1].response.output]
    assert all(item.status == "in_progress" for item in added)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_reader_goes_on_after_any_event(
    client: openai.OpenAI, other: openai.OpenAI, asked: dict[str, Any], elsewhere: bool
) -> None:
    with client.responses.create(**asked, stream=True, background=True) as stream:
        events: list[Any] = list(stream)
    name, reader = events[0].response.id, other if elsewhere else client
    deltas = [number for number, event in enumerate(events) if hasattr(event, "delta")]
    for known in (1, deltas[0], deltas[-1], len(events) - 2):
        with reader.responses.retrieve(name, stream=True, starting_after=events[known].sequence_number) as stream:
            again: list[Any] = list(stream)
        for kind in ("response.function_call_arguments.delta", "response.reasoning_text.delta"):
            before = "".join(event.delta for event in events[: known + 1] if event.type == kind)
            after = "".join(event.delta for event in again if event.type == kind)
            assert before + after == "".join(event.delta for event in events if event.type == kind)
        assert again[-1].response.output == events[-1].response.output
        assert again[-1].sequence_number == events[-1].sequence_number
    client.responses.delete(name)


def test_a_conversation_goes_on_with_results(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    first = client.responses.create(**asked, store=True)
    (call,) = calls_of(first)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    more = asked | {"tool_choice": "none", "max_output_tokens": 5}
    stored = client.responses.create(**(more | {"input": [result], "previous_response_id": first.id}))
    given: Any = [
        {"role": "user", "content": "How is the weather?"},
        *(item.model_dump(exclude_none=True) for item in first.output),
        result,
    ]
    sent = client.responses.create(**(more | {"input": given}))
    assert stored.usage is not None
    assert sent.usage is not None
    assert stored.usage.input_tokens == sent.usage.input_tokens
    assert stored.output_text == sent.output_text
    client.responses.delete(first.id)
