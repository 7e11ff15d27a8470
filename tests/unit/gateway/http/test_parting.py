"""Answers over HTTP are parted as the engine says it: calls have numbers and ids, and JSON is text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace.types import AcceptedRequest, AnswerFormat
from headrace_gateway.http.answers.parting import CallPart, Parting
from headrace_gateway.http.answers.tools import Tools

TOOLS = Tools([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
TEXT = json.dumps({"a": "<tool_call>f<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>", "b": [1, None]})
CALLS = "<tool_call>f<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>\n<tool_call>f</tool_call>"


def parting() -> Parting:
    form = AnswerFormat("glm45", "think", thought_open=False, or_json=True)
    values: dict[str, Any] = dict.fromkeys(AcceptedRequest.__dataclass_fields__)
    request = AcceptedRequest(**{**values, "request_id": "r", "answer_format": form})
    return Parting(request, TOOLS, thoughts=True, prefix="call_")


def test_json_is_text_whatever_its_strings_have() -> None:
    assert parting().whole(TEXT) == [TEXT]


def test_calls_instead_of_json_are_calls() -> None:
    first, second = parting().whole(CALLS)
    assert isinstance(first, CallPart)
    assert isinstance(second, CallPart)
    assert [(one.index, one.name, json.loads(one.arguments)) for one in (first, second)] == [
        (0, "f", {"b": 1}),
        (1, "f", {}),
    ]
    assert first.id != second.id


@pytest.mark.parametrize("text", [TEXT, CALLS])
def test_streams_have_the_same_parts(text: str) -> None:
    streaming = parting()
    parts = [part for one in text for part in streaming.feed(one)] + streaming.end()
    whole = parting().whole(text)
    said = "".join(part for part in parts if isinstance(part, str))
    assert said == "".join(part for part in whole if isinstance(part, str))
    for part in whole:
        if isinstance(part, CallPart):
            same = [one for one in parts if isinstance(one, CallPart) and one.index == part.index]
            assert (same[0].id, same[0].name) == (part.id, part.name)
            assert "".join(one.arguments for one in same) == part.arguments


def test_json_streams_as_it_comes() -> None:
    streaming = parting()
    assert [streaming.feed(one) for one in ('{"a": ', '"<tool_', 'call>f"}')] == [
        ['{"a": '],
        ['"<tool_'],
        ['call>f"}'],
    ]
