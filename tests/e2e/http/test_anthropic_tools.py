"""Calls of tools and thoughts by Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from support.clocks.waiting import LIMIT
from support.contract.draws import until_both
from support.servers.http_servers import HttpGateway

USER: Any = {"role": "user", "content": "How is the weather?"}
PLACE: Any = {
    "type": "object",
    "properties": {"place": {"enum": ["Rome", "Bern"]}},
    "required": ["place"],
    "additionalProperties": False,
}
RAIN: Any = {**PLACE, "properties": {"rain": {"enum": ["some", "<tool_call>"]}}, "required": ["rain"]}
TOOLS: Any = [
    {"name": "weather", "description": "Tells the weather.", "input_schema": PLACE, "strict": True},
    {"name": "time", "input_schema": {"type": "object", "properties": {}}},
]


@pytest.fixture
def messages(gateway: HttpGateway) -> Iterator[anthropic.resources.Messages]:
    """Anthropic's own client, which does not retry."""
    with anthropic.Anthropic(base_url=f"http://{gateway.http}", api_key="none", max_retries=0, timeout=LIMIT) as client:
        yield client.messages


@pytest.fixture
def asked(thinker: str) -> dict[str, Any]:
    """What each test asks: the model's weights are random, so a call comes because it must. It thinks before it."""
    return {
        "model": thinker,
        "messages": [USER],
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive"},
        "max_tokens": 2000,
        "extra_body": {"seed": 11},
    }


def test_a_tool_is_used_as_the_choice_says(messages: anthropic.resources.Messages, asked: dict[str, Any]) -> None:
    answer = messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    (used,) = [block for block in answer.content if block.type == "tool_use"]
    assert used.name == "weather"
    assert used.input["place"] in ("Rome", "Bern")
    assert used.id.startswith("toolu_")
    assert all(block.type in ("thinking", "tool_use") for block in answer.content)


def test_an_answer_is_a_use_or_json(messages: anthropic.resources.Messages, asked: dict[str, Any]) -> None:
    asked |= {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "tools": TOOLS[:1]}
    asked["output_config"] = {"format": {"type": "json_schema", "schema": RAIN}}
    seen = set()
    for seed in until_both(seen):
        (block,) = messages.create(**(asked | {"extra_body": {"seed": seed, "temperature": 1}})).content
        seen.add(block.type)
        if block.type == "tool_use":
            assert block.input["place"] in ("Rome", "Bern")
        else:
            assert block.type == "text"
            assert json.loads(block.text)["rain"] in ("some", "<tool_call>")
    assert seen == {"tool_use", "text"}


def test_a_stream_has_the_same_blocks(messages: anthropic.resources.Messages, asked: dict[str, Any]) -> None:
    whole = messages.create(**asked)
    with messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.model_dump(exclude={"id"}) for block in final.content] == [
        block.model_dump(exclude={"id"}) for block in whole.content
    ]
    assert final.stop_reason == "tool_use"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(whole.content)
    assert kinds.count("input_json") >= 1


def test_a_conversation_goes_on_with_results(messages: anthropic.resources.Messages, asked: dict[str, Any]) -> None:
    said = messages.create(**asked)
    (used,) = [block for block in said.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": used.id, "content": [{"type": "text", "text": "Rain."}]}
    content = [block.model_dump(exclude_none=True) for block in said.content]
    asked["messages"] = [
        USER,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result, {"type": "text", "text": "Thanks. And now?"}]},
    ]
    asked |= {"tool_choice": {"type": "none"}, "max_tokens": 5}
    assert messages.create(**asked).stop_reason in ("end_turn", "max_tokens")
    counted = messages.count_tokens(
        model=asked["model"], messages=asked["messages"], tools=TOOLS, tool_choice={"type": "auto"}
    )
    assert counted.input_tokens > 100


def test_a_cut_call_ends_with_max_tokens(messages: anthropic.resources.Messages, asked: dict[str, Any]) -> None:
    asked |= {"max_tokens": 3, "thinking": {"type": "disabled"}}
    assert messages.create(**asked).stop_reason == "max_tokens"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"tools": []}, "tool_choice is set without tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        ({"tool_choice": {"type": "any", "name": "time"}}, "tool_choice.name is of no use"),
        ({"tool_choice": {"type": "tool", "name": "absent"}}, 'tool_choice names "absent"'),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ],
)
def test_a_wrong_field_is_named(
    messages: anthropic.resources.Messages, asked: dict[str, Any], more: dict[str, Any], named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        messages.create(**(asked | more))
    error: Any = caught.value.body
    assert error["error"]["message"].startswith(named)
