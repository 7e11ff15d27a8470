"""Prompts: text, ids, or messages."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from headrace import InvalidRequestError
from headrace._values import calls
from headrace._values.prompt import build_chat
from headrace_proto.v1 import request_service_pb2


def start(prompt: Any = None, **given: Any) -> request_service_pb2.StartRequestRequest:
    """The question that start_request asks."""
    kinds = {name: given.pop(name, None) for name in ("text", "ids", "messages", "request_id")}
    return calls.start_request("smol", prompt, **kinds, fields=given)


USER = {"role": "user", "content": "Hello!"}


@pytest.mark.parametrize("given", [{"prompt": "Hello"}, {"text": "Hello"}])
def test_text(given: dict[str, Any]) -> None:
    request = start(**given)
    assert (request.WhichOneof("prompt"), request.text) == ("text", "Hello")
    assert not request.HasField("add_special_tokens")
    assert start("Hello", add_special_tokens=False).HasField("add_special_tokens")


@pytest.mark.parametrize("given", [{"prompt": [1, 2]}, {"ids": [1, 2]}, {"prompt": (1, 2)}, {"ids": range(1, 3)}])
def test_ids(given: dict[str, Any]) -> None:
    request = start(**given)
    assert (request.WhichOneof("prompt"), list(request.token_ids.ids)) == ("token_ids", [1, 2])


@pytest.mark.parametrize("row", [[[1, 2]], ([1, 2],), np.array([[1, 2]]), torch.tensor([[1, 2]]), iter([(1, 2)])])
def test_one_row_of_ids_is_these_ids(row: Any) -> None:
    """As tokenizers return them for one text."""
    assert list(start(ids=row).token_ids.ids) == [1, 2]


@pytest.mark.parametrize("rows", [[[1], [2]], np.array([[1, 2], [3, 4]]), torch.tensor([[1], [2]]), [1, [2]]])
def test_several_rows_of_ids_are_several_requests(rows: Any) -> None:
    for given in ({"ids": rows}, {"prompt": rows}):
        with pytest.raises(
            InvalidRequestError, match=r"ids = .*: must be one row of ids, not 2; start a request for each"
        ):
            start(**given)


@pytest.mark.parametrize("deep", [[[[1, 2]]], [["a"]]])
def test_what_is_deeper_than_a_row_is_refused(deep: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"ids\[0\] = .* must be a whole number"):
        start(ids=deep)


def test_an_empty_list_of_ids_is_left_to_the_engine() -> None:
    assert start([]).WhichOneof("prompt") == "token_ids"
    assert start("").WhichOneof("prompt") == "text"


@pytest.mark.parametrize("given", [{"prompt": [USER]}, {"messages": [USER]}])
def test_messages(given: dict[str, Any]) -> None:
    request = start(**given)
    assert request.WhichOneof("prompt") == "chat"
    assert (request.chat.messages[0].role, request.chat.messages[0].content) == ("user", "Hello!")


@pytest.mark.parametrize("given", [{}, {"prompt": "a", "text": "b"}, {"ids": [1], "messages": [USER]}])
def test_exactly_one_prompt_is_given(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="exactly one of prompt, text, ids and messages"):
        start(**given)


@pytest.mark.parametrize("prompt", [5, b"bytes", {"role": "user"}])
def test_a_prompt_of_another_kind_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequestError, match="prompt ="):
        start(prompt)


def test_options_of_another_kind_of_prompt_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"tools = .* when the prompt is given as text"):
        start("Hello", tools=[{}])
    with pytest.raises(InvalidRequestError, match=r"add_special_tokens = .* given as ids"):
        start([1], add_special_tokens=True)
    with pytest.raises(InvalidRequestError, match=r"add_special_tokens = .* given as messages"):
        start([USER], add_special_tokens=True)


def test_unknown_keywords_are_type_errors_with_close_ones() -> None:
    with pytest.raises(TypeError, match=r'start_request\(\) has no keyword "temprature"; did you mean temperature'):
        start("Hello", temprature=0.5)
    with pytest.raises(TypeError, match="did you mean template_variables"):
        start([USER], template_variable={})


@pytest.mark.parametrize("request_id", ["", "x" * 129, 7])
def test_a_request_id_has_1_to_128_characters(request_id: Any) -> None:
    with pytest.raises(InvalidRequestError, match="request_id"):
        start("Hello", request_id=request_id)


def test_the_generation_fields_go_into_the_config() -> None:
    request = start("Hello", temperature=0, max_new_tokens=5)
    assert request.config.HasField("temperature")
    assert request.config.max_new_tokens == 5


def test_the_parts_of_a_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    flat = {"id": "c2", "name": "add", "arguments": {"a": 2}}
    chat = build_chat(
        [
            {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {"role": "user", "content": "1 + 1?", "name": "Ann"},
            {"role": "assistant", "content": None, "tool_calls": [call, flat]},
            {"role": "tool", "content": "2", "tool_call_id": "c1", "weight": 3, "seen": None},
        ],
        {
            "template_variables": {"thinking": False, "depth": [1, "é"]},
            "tools": [{"name": "add"}, '{"name": "sub"}'],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    )
    system, user, assistant, tool = chat.messages
    assert [part.text for part in system.parts] == ["Be ", "brief."]
    assert not system.HasField("content")
    assert user.name == "Ann"
    assert not assistant.HasField("content")
    assert [(one.id, one.name, json.loads(one.arguments_json)["a"]) for one in assistant.tool_calls] == [
        ("c1", "add", 1),
        ("c2", "add", 2),
    ]
    assert tool.tool_call_id == "c1"
    assert json.loads(tool.extra_json) == {"weight": 3, "seen": None}
    assert dict(chat.template_variables) == {"thinking": "false", "depth": '[1, "é"]'}
    assert [json.loads(one)["name"] for one in chat.tools] == ["add", "sub"]
    assert (chat.add_generation_prompt, chat.continue_final_message) == (False, True)


def test_defaults_of_a_conversation_are_the_servers() -> None:
    chat = build_chat([USER], {})
    assert not chat.HasField("add_generation_prompt")
    assert not chat.HasField("continue_final_message")
    assert chat.messages[0].extra_json == ""


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Hello", r"messages\[0\] = 'Hello': must be a mapping"),
        ({"content": "x"}, r"messages\[0\]\.role"),
        ({"role": "user", "content": 5}, r"messages\[0\]\.content = 5: must be a string, or a list of parts"),
        ({"role": "user", "content": b"x"}, r"messages\[0\]\.content = b'x': must be a string, or a list of parts"),
        ({"role": "user", "content": ["x"]}, r"messages\[0\]\.content\[0\] = 'x': must be a mapping"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "must be one of text, media"),
        ({"role": "user", "content": "x", "name": 5}, r"messages\[0\]\.name = 5: must be a string"),
        ({"role": "assistant", "tool_calls": ["add"]}, r"messages\[0\]\.tool_calls\[0\]"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "the function's name"),
        ({"role": "user", "content": "x", "extra": {1, 2}}, "serializable as JSON"),
    ],
)
def test_a_wrong_message_is_named_by_its_index(message: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        build_chat([message], {})


def test_messages_are_a_list() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages = .*: must be a list of messages"):
        build_chat(USER, {})


def test_variables_that_json_cannot_hold_are_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"template_variables\['now'\]"):
        build_chat([USER], {"template_variables": {"now": object()}})


def test_variables_are_a_mapping_of_names() -> None:
    for given in ([("a", 1)], 0, ""):
        with pytest.raises(InvalidRequestError, match=r"template_variables = .*: must be a mapping"):
            build_chat([USER], {"template_variables": given})
    with pytest.raises(InvalidRequestError, match=r"template_variables\[1\] = 1: must be a string"):
        build_chat([USER], {"template_variables": {1: 2}})


@pytest.mark.parametrize("given", [5, 0, "", "add", {"name": "add"}, b"x"])
def test_tools_and_tool_calls_are_lists(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^tools = .*: must be a list of functions"):
        build_chat([USER], {"tools": given})
    with pytest.raises(InvalidRequestError, match=r"^messages\[0\]\.tool_calls = .*: must be a list of tool calls"):
        build_chat([{"role": "assistant", "tool_calls": given}], {})


def test_a_tool_that_the_wire_cannot_carry_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"tools\[1\] = .*lone surrogates"):
        build_chat([USER], {"tools": ["{}", "\ud800"]})


def test_what_can_be_iterated_over_once_is_taken_whole() -> None:
    assert list(start(iter([5, 6, 7])).token_ids.ids) == [5, 6, 7]
    assert list(start(ids=iter([5, 6, 7])).token_ids.ids) == [5, 6, 7]
    chat = start(message for message in [USER, {"role": "assistant", "tool_calls": iter(())}]).chat
    assert [message.role for message in chat.messages] == ["user", "assistant"]
    assert len(build_chat(iter([USER]), {"tools": iter([{}])}).tools) == 1


@pytest.mark.parametrize("prompt", [[1, 2], iter([1, 2]), iter(["a"]), []])
def test_ids_are_not_tokenized(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="ids already"):
        calls.tokenize("smol", prompt, text=None, messages=None, fields={})


def test_a_user_message_without_content_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidRequestError, match=r"^messages\[0\]\.content = None: must be a string"):
        build_chat([{"role": "user", "content": None}], {})
