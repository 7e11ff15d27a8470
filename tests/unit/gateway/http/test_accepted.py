"""Warnings in headers, and what fields are called in them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from headrace.types import ConfigWarning
from headrace_gateway.http.accepted import WARNINGS, headers_of
from headrace_gateway.http.anthropic.request import NAMES as MESSAGE_NAMES
from headrace_gateway.http.anthropic.request import MessageRequest
from headrace_gateway.http.failures import named
from headrace_gateway.http.openai.fields import NAMES as CHAT_NAMES
from headrace_gateway.http.openai.responses.request import NAMES as RESPONSE_NAMES
from headrace_gateway.http.openai.responses.request import ResponseRequest

CALLED = "messages[3].tool_calls[1].function.arguments"


def test_a_long_warning_is_shortened_and_hides_no_other() -> None:
    long, short = ConfigWarning("config.stop_words", "\u96ea" * 1000), ConfigWarning("config.seed", "short")
    accepted: Any = SimpleNamespace(request_id="r", warnings=(long, short))
    headers = headers_of([(accepted, {})])
    assert json.loads(headers[WARNINGS]) == [
        {"field": "stop_words", "message": "\u96ea" * 85 + "\u2026"},
        {"field": "seed", "message": "short"},
    ]


def told(*prompts: tuple[ConfigWarning, ...]) -> Any:
    """The warnings in a header of some prompts."""
    accepted: Any = [SimpleNamespace(request_id="r", warnings=one) for one in prompts]
    header = headers_of([(one, {}) for one in accepted])[WARNINGS]
    assert all(" " <= one <= "~" for one in header)
    return json.loads(header)


def test_a_message_that_is_cut_still_says_how_many() -> None:
    found = told(*((ConfigWarning("config.seed", f"seed {number} " + "x" * 10**6),) for number in range(3)))
    (one,) = found
    assert one["message"].startswith("seed 0 x")
    assert one["message"].endswith("x\u2026 (and 2 more like it of other prompts)")


def test_only_messages_that_differ_in_numbers_are_alike() -> None:
    first, second, other = (ConfigWarning("config.seed", text) for text in ("seed = 1", "seed = 2", "seed is odd"))
    messages = [one["message"] for one in told((first,), (second, other), (second,), (first,))]
    assert messages == ["seed = 1 (and 2 more like it of other prompts)", "seed is odd"]


def test_headers_have_no_characters_of_control() -> None:
    text = "a\x7fb\r\n\0" + "\x7f" * 1000
    (one,) = told((ConfigWarning("config.seed", text),))
    assert one["message"].startswith("a\x7fb\r\n\0\x7f")
    assert one["message"].endswith("\x7f\u2026")
    assert len(json.dumps(one["message"]).replace("\x7f", r"\u007f")) < 530


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


def test_what_becomes_the_first_message_has_its_own_name() -> None:
    said = MessageRequest(model="m", messages=[], max_tokens=1, system="s")
    asked = ResponseRequest(model="m", input="i", instructions="s")
    for names, own, others in ((said.names(), "system", "messages"), (asked.names(), "instructions", "input")):
        for index, name in ((0, own), (1, others), (10, others)):
            path = f"chat.messages[{index}].content"
            assert named(path, f"{path} is too long", names) == (name, f"a part of {name} is too long")
