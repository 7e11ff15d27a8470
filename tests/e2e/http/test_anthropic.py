"""Messages by Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT
from support.servers.http_servers import HttpGateway

USER: Any = [{"role": "user", "content": "Hello world?"}]
SYSTEM = "You are a river."
WHOLE: Any = [{"role": "system", "content": SYSTEM}, *USER]


@pytest.fixture
def messages(gateway: HttpGateway) -> Iterator[anthropic.resources.Messages]:
    """Anthropic's own client, which does not retry."""
    with anthropic.Anthropic(base_url=f"http://{gateway.http}", api_key="none", max_retries=0, timeout=LIMIT) as client:
        yield client.messages


def over_grpc(grpc: Client, messages: Any, **config: Any) -> str:
    """The text that gRPC's client reads."""
    return "".join(grpc.generate("tiny", messages=messages, **config))


def test_a_seed_gives_the_text_of_grpc(messages: anthropic.resources.Messages, grpc: Client) -> None:
    answer = messages.create(
        model="tiny", system=SYSTEM, messages=USER, max_tokens=40, extra_body={"seed": 6, "temperature": 0.8}
    )
    expected = over_grpc(grpc, WHOLE, seed=6, max_new_tokens=40, temperature=0.8)
    assert [block.text for block in answer.content if block.type == "text"] == [expected]
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 40
    cached = answer.usage.cache_read_input_tokens or 0
    assert answer.usage.input_tokens + cached == len(grpc.tokenize("tiny", messages=WHOLE).ids)


def test_a_stream_has_the_same_text(messages: anthropic.resources.Messages, grpc: Client) -> None:
    parts: Any = [{"type": "text", "text": "Hello world?", "cache_control": {"type": "ephemeral"}}]
    turns: Any = [{"role": "user", "content": parts}]
    with messages.stream(model="tiny", messages=turns, max_tokens=40, extra_body={"seed": 6, "top_k": 20}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == over_grpc(grpc, USER, seed=6, max_new_tokens=40, top_k=20)
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 40)


def test_a_stop_sequence_is_told(messages: anthropic.resources.Messages, grpc: Client) -> None:
    whole = over_grpc(grpc, USER, seed=6, max_new_tokens=40)
    stop = whole[8:10]
    answer = messages.create(model="tiny", messages=USER, max_tokens=40, stop_sequences=[stop], extra_body={"seed": 6})
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert [block.text for block in answer.content if block.type == "text"] == [whole[: whole.index(stop)]]


def test_a_last_message_of_the_assistant_goes_on(messages: anthropic.resources.Messages, grpc: Client) -> None:
    turns: Any = [*USER, {"role": "assistant", "content": "The river"}]
    answer = messages.create(model="tiny", messages=turns, max_tokens=10, extra_body={"seed": 6})
    fields: Any = {"add_generation_prompt": False, "continue_final_message": True}
    assert [block.text for block in answer.content if block.type == "text"] == [
        over_grpc(grpc, turns, seed=6, max_new_tokens=10, **fields)
    ]


def test_tokens_are_counted(messages: anthropic.resources.Messages, grpc: Client) -> None:
    count = messages.count_tokens(model="tiny", system=SYSTEM, messages=USER)
    assert count.input_tokens == len(grpc.tokenize("tiny", messages=WHOLE).ids)


SCHEMA: Any = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_a_schema_is_enforced(messages: anthropic.resources.Messages, grpc: Client) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    asked: Any = {"model": "tiny", "messages": USER, "output_config": config}
    answer = messages.create(max_tokens=40, extra_body={"seed": 6}, **asked)
    (text,) = [block.text for block in answer.content if block.type == "text"]
    assert json.loads(text)["a"] in (1, 2)
    assert messages.count_tokens(**asked).input_tokens == len(grpc.tokenize("tiny", messages=USER).ids)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_leaves_no_place_for_a_thought(messages: anthropic.resources.Messages, stream: bool) -> None:
    """The prompt ends within one."""
    turns: Any = [*USER, {"role": "assistant", "content": "<think>"}]
    asked: Any = {"model": "tiny", "messages": turns, "max_tokens": 400, "extra_body": {"seed": 6}}
    asked |= {"thinking": {"type": "adaptive"}, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    if stream:
        with messages.stream(**asked) as events:
            answer: Any = events.get_final_message()
    else:
        answer = messages.create(**asked)
    (block,) = answer.content
    assert block.type == "text"
    assert json.loads(block.text)["a"] in (1, 2)


def test_what_changes_nothing_is_taken(messages: anthropic.resources.Messages, grpc: Client) -> None:
    more: Any = {"cache_control": {"type": "ephemeral"}, "speed": "standard", "service_tier": "auto"}
    thinking: Any = {"type": "adaptive", "display": "summarized"}
    asked: Any = {"model": "tiny", "messages": USER, "max_tokens": 9, "thinking": thinking, **more}
    answer = messages.create(extra_body={"seed": 6}, **asked)
    assert [block.text for block in answer.content if block.type == "text"] == [
        over_grpc(grpc, USER, seed=6, max_new_tokens=9)
    ]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"messages": []}, "messages"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"name": "f", "input_schema": {"type": "object"}}]}, "tools"),
        ({"thinking": {"type": "deep"}}, "thinking"),
        ({"extra_body": {"colour": 1}}, "colour"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}}, "output_config.format"),
        ({"speed": "fast"}, "speed"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_a_wrong_field_is_named(messages: anthropic.resources.Messages, fields: Any, named: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        messages.create(**{"model": "tiny", "messages": USER, "max_tokens": 4, **fields})
    error: Any = caught.value.body
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(named)


def test_an_unknown_model_is_told(messages: anthropic.resources.Messages) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        messages.create(model="nothing", messages=USER, max_tokens=4)
    error: Any = caught.value.body
    assert error["error"]["type"] == "not_found_error"
