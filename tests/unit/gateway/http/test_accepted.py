"""Warnings in headers, and what fields are called in them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.types import ConfigWarning
from headrace_gateway.http.accepted import WARNINGS, headers_of
from headrace_gateway.http.anthropic.request import NAMES as MESSAGE_NAMES
from headrace_gateway.http.failures import named
from headrace_gateway.http.openai.fields import NAMES as CHAT_NAMES
from headrace_gateway.http.openai.responses.request import NAMES as RESPONSE_NAMES

CALLED = "messages[3].tool_calls[1].function.arguments"


def test_a_long_warning_is_shortened_and_hides_no_other() -> None:
    long, short = ConfigWarning("config.stop_words", "\u96ea" * 1000), ConfigWarning("config.seed", "short")
    accepted: Any = SimpleNamespace(request_id="r", warnings=(long, short))
    headers = headers_of([(accepted, {})])
    assert json.loads(headers[WARNINGS]) == [
        {"field": "stop_words", "message": "\u96ea" * 85 + "\u2026"},
        {"field": "seed", "message": "short"},
    ]


@pytest.mark.parametrize(
    ("names", "field", "begin"),
    [
        (CHAT_NAMES, CALLED, f"{CALLED} has"),
        (MESSAGE_NAMES, "messages", "a part of messages has"),
        (RESPONSE_NAMES, "input", "a part of input has"),
    ],
)
def test_parts_of_messages_are_those_of_the_api(names: Any, field: str, begin: str) -> None:
    """An engine has other messages than the caller of some APIs gave: no number is told of those."""
    path = "chat.messages[3].tool_calls[1].arguments_json"
    found = named(path, f"{path} has no effect", names)
    assert found == (field, f"{begin} no effect")
