"""Chats by OpenAI's own client: the same texts as over gRPC, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from headrace import Client
from support.servers.http_servers import HttpGateway

MESSAGES: Any = [{"role": "system", "content": "You are a river."}, {"role": "user", "content": "Hello world?"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def over_grpc(grpc: Client, **config: Any) -> list[str]:
    """The texts that gRPC's client reads."""
    handle, queue = grpc.start_request("tiny", messages=MESSAGES, **config)
    texts = ["".join(elements.text for elements in choice) for choice in queue.choices]
    grpc.release_request(handle)
    return texts


def test_a_seed_gives_the_texts_of_grpc(client: openai.OpenAI, grpc: Client) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=11, max_tokens=40, n=3)
    assert [choice.message.content for choice in answer.choices] == over_grpc(grpc, seed=11, max_new_tokens=40, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(40 for _ in range(3))
    assert answer.usage.prompt_tokens == len(grpc.tokenize("tiny", messages=MESSAGES).ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert {choice.finish_reason for choice in answer.choices} == {"length"}


def test_a_stream_has_the_same_texts(client: openai.OpenAI, grpc: Client) -> None:
    texts, finishes, usage = ["", "", ""], {}, None
    with client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        seed=11,
        max_completion_tokens=40,
        n=3,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason is not None:
                    finishes[choice.index] = choice.finish_reason
            usage = chunk.usage or usage
    assert texts == over_grpc(grpc, seed=11, max_new_tokens=40, n=3)
    assert finishes == {0: "length", 1: "length", 2: "length"}
    assert usage is not None
    assert usage.completion_tokens == 120


def test_a_stream_without_usage_has_none(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3, stream=True) as stream:
        chunks = list(stream)
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_grpc(client: openai.OpenAI, grpc: Client, stream: bool) -> None:
    config: Any = {"model": "tiny", "messages": MESSAGES, "seed": 4, "max_tokens": 12, "logprobs": True}
    found: list[Any] = []
    if stream:
        with client.chat.completions.create(**config, top_logprobs=3, stream=True) as chunks:
            for chunk in chunks:
                if chunk.choices[0].logprobs is not None:
                    found += chunk.choices[0].logprobs.content or []
    else:
        answer = client.chat.completions.create(**config, top_logprobs=3)
        found += answer.choices[0].logprobs.content or []
    handle, queue = grpc.start_request(
        "tiny", messages=MESSAGES, seed=4, max_new_tokens=12, logprobs=True, top_logprobs=3
    )
    elements = list(queue)
    grpc.release_request(handle)
    ids = [one for element in elements for one in element.ids_from_generate]
    tops = [one for element in elements for one in element.log_probs_list]
    assert [entry.logprob for entry in found] == pytest.approx(
        [one for element in elements for one in element.token_logprobs_list]
    )
    assert [bytes(entry.bytes) for entry in found] == grpc.detokenize("tiny", ids, skip_special_tokens=False).pieces
    assert [[one.logprob for one in entry.top_logprobs] for entry in found] == [
        pytest.approx([chance for _, chance in top]) for top in tops
    ]


def test_a_stop_ends_the_text_before_it(client: openai.OpenAI, grpc: Client) -> None:
    (whole,) = over_grpc(grpc, seed=11, max_new_tokens=40)
    stop = whole[10:12]
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=11, max_tokens=40, stop=stop)
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_a_schema_is_satisfied(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=2, max_tokens=400, response_format=form
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), SCHEMA)


def test_any_json_object_may_be_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        seed=3,
        temperature=0.6,
        max_tokens=1500,
        response_format={"type": "json_object"},
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


@pytest.mark.parametrize("newer", [False, True])
def test_structural_tags_are_taken_in_both_forms(client: openai.OpenAI, grpc: Client, newer: bool) -> None:
    content = {"type": "json_schema", "json_schema": SCHEMA}
    tags = [{"begin": "<p>", "content": content, "end": "</p>"}]
    first = {"type": "triggered_tags", "triggers": ["<p"], "tags": tags, "at_least_one": True, "stop_after_first": True}
    structures = [{"begin": "<p>", "schema": SCHEMA, "end": "</p>"}]
    parts: Any = {"format": first} if newer else {"triggers": ["<p"], "structures": structures}
    form: Any = {"type": "structural_tag", **parts}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, seed=2, max_tokens=400, response_format=form
    )
    text = answer.choices[0].message.content or ""
    assert [text] == over_grpc(grpc, seed=2, max_new_tokens=400, response_format=form)
    if newer:
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(text.removeprefix("<p>").removesuffix("</p>")), SCHEMA)


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_field"),
        ({"n": 65}, "n", "invalid_field"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_field"),
        ({"max_tokens": 0}, "max_tokens", "invalid_field"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_field"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_field"),
        ({"extra_body": {"colour": "blue"}}, "colour", "unknown_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_value"),
        ({"logit_bias": {"x": 1}}, 'logit_bias["x"]', "invalid_value"),
        ({"logit_bias": {"100000": 1}}, "logit_bias", "invalid_field"),
        ({"messages": []}, "messages", "invalid_field"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "unsupported_value",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        ({"response_format": {"type": "structural_tag", "triggers": ["<"]}}, "response_format", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ],
)
def test_a_wrong_field_is_named(client: openai.OpenAI, fields: Any, field: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, **fields})
    assert (caught.value.param or "").startswith(field)
    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"


def test_what_changes_nothing_may_be_sent(client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=2, user="me", metadata={"a": "b"}, store=False, service_tier="auto"
    )


def test_an_unknown_model_and_a_long_prompt_are_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "river " * 4000}])
    assert long.value.code == "context_length_exceeded"


def test_an_answer_can_be_sent_back(client: openai.OpenAI, gateway: HttpGateway) -> None:
    """As clients do: with all the keys that are null."""
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
    again = [*MESSAGES, answer.choices[0].message.model_dump(), {"role": "user", "content": "Why?"}]
    status, _ = gateway.post("/v1/chat/completions", {"model": "tiny", "messages": again, "max_tokens": 2})
    assert status == 200
