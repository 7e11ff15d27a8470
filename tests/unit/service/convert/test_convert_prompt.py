"""Requests to start: their prompts, their keys, and what is refused by its form."""

from __future__ import annotations

import pytest
from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import ResumedSequence, StartRequest
from headrace_engine.result_types import RequestStat
from headrace_engine.service.convert.prompt import generate_request, start_request, tokenize_prompt
from headrace_proto.v1 import generation_pb2, request_pb2
from headrace_proto.v1.engine_service_pb2 import TokenizeRequest
from headrace_proto.v1.request_service_pb2 import GenerateRequest, StartRequestRequest

BOTH = [(start_request, StartRequestRequest), (generate_request, GenerateRequest)]


@pytest.mark.parametrize(("convert", "kind"), BOTH)
def test_a_prompt_is_text_ids_or_chat(convert, kind):
    assert convert(kind(text="hi")).prompt == "hi"
    assert convert(kind(text="")).prompt == ""
    assert convert(kind(token_ids={"ids": [3, 1]})).prompt == (3, 1)
    assert convert(kind(token_ids={})).prompt == ()
    assert convert(kind(chat={})).prompt == Chat(messages=())


@pytest.mark.parametrize(("convert", "kind"), BOTH)
def test_no_prompt_is_refused_by_name(convert, kind):
    with pytest.raises(InvalidArgument, match="text, token_ids, chat") as caught:
        convert(kind(model_name="smol"))
    assert caught.value.violations[0].field == "prompt"
    assert caught.value.reason == "INVALID_FIELD"


def test_everything_of_a_start_arrives():
    request = start_request(
        StartRequestRequest(
            model_name="smol",
            text="hi",
            add_special_tokens=False,
            config={"top_k": 0},
            request_id="r1",
            owner="ann",
            attempt=2,
        )
    )
    assert request == StartRequest(
        "smol", "hi", GenerationConfig(top_k=0), False, "r1", owner="ann", content=request.content
    )


def test_a_generate_has_no_key():
    request = generate_request(GenerateRequest(model_name="smol", text="hi", owner="ann", config={"seed": 0}))
    assert request == StartRequest("smol", "hi", GenerationConfig(seed=0), owner="ann")


def test_a_chat_arrives_whole():
    message = generation_pb2.Chat(
        messages=[
            {"role": "system", "content": ""},
            {"role": "user", "parts": [{"text": "a"}, {"text": "b"}], "name": "ann"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "name": "f", "arguments_json": "{}"}],
                "extra_json": '{"k": 1}',
            },
            {"role": "tool", "content": "x", "tool_call_id": "1"},
        ],
        add_generation_prompt=False,
        continue_final_message=True,
        template_variables={"thinking": "true"},
        tools=["{}"],
    )
    expected = Chat(
        messages=(
            ChatMessage("system", ""),
            ChatMessage("user", ("a", "b"), name="ann"),
            ChatMessage("assistant", None, tool_calls=(ToolCall("1", "f", "{}"),), extra_json='{"k": 1}'),
            ChatMessage("tool", "x", tool_call_id="1"),
        ),
        add_generation_prompt=False,
        continue_final_message=True,
        template_variables={"thinking": "true"},
        tools=("{}",),
    )
    assert start_request(StartRequestRequest(chat=message)).prompt == expected
    assert tokenize_prompt(TokenizeRequest(chat=message)) == (expected, None)


def _refusal(**fields) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        start_request(StartRequestRequest(**fields))
    return caught.value


def test_media_in_a_chat_are_not_supported_and_named():
    parts = [{"text": "what is this?"}, {"media": {"data": b"png", "mime_type": "image/png"}}]
    error = _refusal(chat={"messages": [{"role": "system"}, {"role": "user", "parts": parts}]})
    assert error.reason == "NOT_SUPPORTED"
    assert error.violations[0].field == "chat.messages[1].parts[1].media"


def test_content_and_parts_exclude_each_other():
    error = _refusal(chat={"messages": [{"role": "user", "content": "x", "parts": [{"text": "y"}]}]})
    assert error.violations[0].field == "chat.messages[0].parts"


def test_a_part_without_a_kind_is_refused_by_name():
    error = _refusal(chat={"messages": [{"role": "user", "parts": [{}]}]})
    assert error.violations[0].field == "chat.messages[0].parts[0]"


def _unknown_field(message, number: int) -> None:
    """What a newer client's field looks like: one that this build's descriptor does not have."""
    message.MergeFromString(bytes([number << 3 & 0x7F | 0x80, number >> 4, 1]))


@pytest.mark.parametrize(("convert", "kind"), BOTH)
def test_unknown_fields_at_any_depth_are_refused_by_number(convert, kind):
    request = kind(text="hi", config={"lease": {}})
    _unknown_field(request, 99)
    _unknown_field(request.config.lease, 77)
    with pytest.raises(InvalidArgument) as caught:
        convert(request)
    fields = {violation.field: violation.description for violation in caught.value.violations}
    assert set(fields) == {"#99", "config.lease.#77"}
    assert kind.DESCRIPTOR.full_name in fields["#99"]
    assert "headrace.v1.Lease has no field 77" in fields["config.lease.#77"]


def test_unknown_fields_in_lists_of_messages_are_found():
    request = StartRequestRequest(chat={"messages": [{"role": "user"}, {"role": "user"}]})
    _unknown_field(request.chat.messages[1], 50)
    with pytest.raises(InvalidArgument) as caught:
        start_request(request)
    assert caught.value.violations[0].field == "chat.messages[1].#50"


def test_unknown_enum_numbers_are_refused_naming_the_field():
    error = _refusal(text="hi", config={"interrupt_policy": 9})
    assert error.violations[0].field == "config.interrupt_policy"
    assert "INTERRUPT_POLICY_RESUME, INTERRUPT_POLICY_RETURN" in error.violations[0].description


@pytest.mark.parametrize("path", ["deadline", "lease.ended"])
@pytest.mark.parametrize(
    ("seconds", "nanos", "fits"),
    [
        (2**63 - 1, 16, False),
        (-(2**63), 0, False),
        (315_576_000_001, 0, False),
        (1, -1, False),
        (-1, 1, False),
        (0, 10**9, False),
        (315_576_000_000, 999_999_999, True),
        (0, -1, True),
        (-1, -1, True),
    ],
)
def test_durations_that_are_none_are_refused(path, seconds, nanos, fits):
    message = StartRequestRequest(model_name="m", text="hi")
    part = message.config
    for name in path.split("."):
        part = getattr(part, name)
    part.seconds, part.nanos = seconds, nanos
    if fits:
        assert start_request(message).config is not None
        return
    with pytest.raises(InvalidArgument, match=f"= {seconds} s and {nanos} ns is no duration") as caught:
        start_request(message)
    assert caught.value.violations[0].field == f"config.{path}"


def test_equal_starts_have_equal_content_whoever_sends_them():
    def content(**fields) -> bytes:
        return start_request(StartRequestRequest(text="hi", **fields)).content

    base = content()
    assert base
    resume = request_pb2.Resume(sequences=[{"index": 0}])
    same = [{"attempt": 3}, {"owner": "ann"}, {"request_id": "r"}, {"handover": 1}, {"resume": resume}]
    assert {content(**fields) for fields in same} == {base}
    assert content(config={"seed": 0}) != base
    assert content(model_name="smol") != base


def test_content_does_not_depend_on_the_order_of_maps():
    first = StartRequestRequest(text="hi", config={"logit_bias": {1: 0.5, 2: 1.5, 900: 2.0}})
    second = StartRequestRequest(text="hi", config={"logit_bias": {900: 2.0, 2: 1.5, 1: 0.5}})
    assert start_request(first).content == start_request(second).content


def test_a_hand_over_is_passed_on_as_it_is():
    sequence = {"index": 3, "delivered_ids": [5, 6], "stat": {"preemptions": 2}, "ended": True}
    request = start_request(StartRequestRequest(text="hi", handover=2, resume={"sequences": [sequence]}))
    assert request.handover == 2
    assert request.resume == (ResumedSequence(3, (5, 6), RequestStat(preemptions=2), True),)


def test_no_hand_over_is_not_the_same_as_an_empty_one():
    assert start_request(StartRequestRequest(text="hi")).resume is None
    assert start_request(StartRequestRequest(text="hi", resume={})).resume == ()
    (sequence,) = start_request(StartRequestRequest(text="hi", resume={"sequences": [{}]})).resume
    assert sequence == ResumedSequence()
