"""Responses by OpenAI's own client: created, streamed, read again, cancelled and continued."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from headrace import Client
from openai.types.responses import Response
from support.clocks.waiting import wait_until
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway

INPUT = "Hello world?"
MORE: Any = {"seed": 6, "ignore_eos": True}


def over_grpc(grpc: Client, messages: Any, **config: Any) -> str:
    """The text that gRPC's client reads."""
    return "".join(grpc.generate("tiny", messages=messages, seed=6, ignore_eos=True, **config))


@pytest.fixture
def text(grpc: Client) -> str:
    """What the model answers in 60 tokens."""
    return over_grpc(grpc, [{"role": "user", "content": INPUT}], max_new_tokens=60)


def created(client: openai.OpenAI, **more: Any) -> Response:
    return client.responses.create(model="tiny", input=INPUT, max_output_tokens=60, extra_body=MORE, **more)


def finished(client: openai.OpenAI, name: str) -> Response:
    """A response once it has ended."""
    wait_until(lambda: client.responses.retrieve(name).status != "in_progress", "the response does not end")
    return client.responses.retrieve(name)


def test_a_seed_gives_the_text_of_grpc(client: openai.OpenAI, grpc: Client, text: str) -> None:
    answer = created(client, metadata={"a": "b"})
    assert answer.output_text == text
    assert (answer.status, answer.metadata) == ("incomplete", {"a": "b"})
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 60
    wait_until(lambda: not grpc.list_requests(), "the request is not released")


def test_instructions_and_items_are_messages(client: openai.OpenAI, grpc: Client) -> None:
    parts: Any = [{"type": "input_text", "text": "Hello"}]
    items: Any = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Why"},
        {"role": "user", "content": "How"},
    ]
    answer = client.responses.create(
        model="tiny", instructions="You are a river.", input=items, max_output_tokens=9, extra_body=MORE
    )
    messages = [
        {"role": "system", "content": "You are a river."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Why"},
        {"role": "user", "content": "How"},
    ]
    assert answer.output_text == over_grpc(grpc, messages, max_new_tokens=9)


def test_a_stream_has_the_same_text(client: openai.OpenAI, text: str) -> None:
    with created(client, stream=True) as stream:  # type: ignore[attr-defined]
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]


def test_a_schema_is_satisfied(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "thing", "schema": schema}}
    answer = client.responses.create(model="tiny", input=INPUT, text=form, max_output_tokens=200)
    assert answer.status == "completed"
    assert json.loads(answer.output_text)["a"] in (1, 2)


def test_what_runs_in_the_background_can_be_read_anywhere(
    client: openai.OpenAI, other: openai.OpenAI, gate: Gate, text: str
) -> None:
    gate.shut()
    begun = created(client, background=True)
    assert begun.status == "in_progress"
    assert client.responses.retrieve(begun.id).status == "in_progress"
    assert other.responses.retrieve(begun.id).status == "in_progress"
    gate.open()
    for reader in (client, other):
        ended = finished(reader, begun.id)
        assert (ended.status, ended.output_text) == ("incomplete", text)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_reader_comes_back_after_an_event(
    client: openai.OpenAI, other: openai.OpenAI, gate: Gate, text: str, elsewhere: bool
) -> None:
    gate.shut()
    found, last, name = "", -1, ""
    with created(client, background=True, stream=True) as stream:  # type: ignore[attr-defined]
        gate.let(8)
        for event in stream:
            last = event.sequence_number
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_text.delta":
                found += event.delta
                if len(found) > 3:
                    break
    gate.open()
    reader = other if elsewhere else client
    with reader.responses.retrieve(name, stream=True, starting_after=last) as stream:
        events = list(stream)
    assert min(event.sequence_number for event in events) > last
    assert found + "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text


def test_a_response_is_cancelled(client: openai.OpenAI, grpc: Client, gate: Gate) -> None:
    gate.shut()
    begun = created(client, background=True)
    gate.let(6)
    gate.open()
    ended = client.responses.cancel(begun.id)
    assert ended.status in ("cancelled", "incomplete")  # It may have been quicker.
    assert client.responses.retrieve(begun.id).status == ended.status
    client.responses.delete(begun.id)
    wait_until(lambda: not grpc.list_requests(), "the request is not released")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)


def test_a_conversation_goes_on(client: openai.OpenAI, grpc: Client, text: str) -> None:
    first = created(client, store=True, instructions="Only for this one.")
    second = client.responses.create(
        model="tiny", input="Why?", previous_response_id=first.id, max_output_tokens=12, extra_body=MORE
    )
    messages = [
        {"role": "user", "content": INPUT},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Why?"},
    ]
    assert second.output_text == over_grpc(grpc, messages, max_new_tokens=12)
    client.responses.delete(first.id)


@pytest.mark.parametrize(
    ("fields", "field", "kind"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens", openai.BadRequestError),
        ({"temperature": -1}, "temperature", openai.BadRequestError),
        ({"tools": [{"type": "web_search"}]}, "tools", openai.BadRequestError),
        ({"tool_choice": "required"}, "tool_choice", openai.BadRequestError),
        ({"max_tool_calls": 2}, "max_tool_calls", openai.BadRequestError),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f"}]},
            "input[0].arguments",
            openai.BadRequestError,
        ),
        ({"reasoning": {"effort": "low"}}, "reasoning", openai.BadRequestError),
        ({"truncation": "auto"}, "truncation", openai.BadRequestError),
        ({"text": {"verbosity": "low"}}, "text.verbosity", openai.BadRequestError),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm", openai.BadRequestError),
        ({"background": True, "store": False}, "store", openai.BadRequestError),
        ({"previous_response_id": "resp_nothing"}, "previous_response_id", openai.NotFoundError),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", openai.BadRequestError),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", openai.BadRequestError),
    ],
)
def test_a_wrong_field_is_named(client: openai.OpenAI, fields: Any, field: str, kind: Any) -> None:
    with pytest.raises(kind) as caught:
        client.responses.create(**{"model": "tiny", "input": "a", **fields})
    assert caught.value.param.startswith(field)


@pytest.mark.parametrize("background", [False, True])
def test_tools_that_cannot_be_parted_are_refused_at_once(client: openai.OpenAI, background: bool) -> None:
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    with pytest.raises(openai.BadRequestError, match="in no form that is known"):
        client.responses.create(model="tiny", input="hi", tools=[tool], background=background, store=True)


def test_the_tokens_of_an_input_are_counted(client: openai.OpenAI, grpc: Client) -> None:
    count = client.responses.input_tokens.count(model="tiny", input=INPUT, instructions="Be brief.")
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": INPUT}]
    assert count.input_tokens == len(grpc.tokenize("tiny", messages=messages).ids)
    first = created(client, store=True)
    more = client.responses.input_tokens.count(model="tiny", input="And?", previous_response_id=first.id)
    messages = [
        {"role": "user", "content": INPUT},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And?"},
    ]
    assert more.input_tokens == len(grpc.tokenize("tiny", messages=messages).ids)
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(model="tiny", input="a", truncation="auto")
    assert caught.value.param == "truncation"


def test_unknown_responses_and_queries_are_told(client: openai.OpenAI, gateway: HttpGateway) -> None:
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call("resp_nothing")
    assert gateway.ask("GET", "/v1/responses/resp_x?stream=maybe")[0] == 400
    assert gateway.ask("GET", "/v1/responses/resp_x?stream=true&starting_after=-1")[0] == 400
