"""What an engine warns of, in a header of the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.servers.http_servers import HttpGateway

HEADER = "headrace-warnings"
SAID: Any = [{"role": "user", "content": "Hello"}]
VAIN: Any = {"model": "tiny", "temperature": 0, "top_p": 0.5}
CHAT = VAIN | {"messages": SAID, "max_tokens": 2}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
BODIES = {
    "chat/completions": CHAT,
    "completions": VAIN | {"prompt": ["a", "b"], "max_tokens": 2},
    "responses": VAIN | {"input": "Hello", "max_output_tokens": 2},
    "messages": CHAT,
}


def warned(gateway: HttpGateway, path: str, body: Any) -> Any:
    """The warnings of an answer; None: there are none."""
    status, headers, answer = gateway.ask("POST", f"/v1/{path}", body)
    assert status == 200, answer
    return json.loads(headers[HEADER]) if HEADER in headers else None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_field_without_effect_is_warned_of_once(gateway: HttpGateway, path: str, stream: bool) -> None:
    text = "top_p = 0.5 has no effect with temperature = 0.0: the most likely token is taken"
    assert warned(gateway, path, BODIES[path] | {"stream": stream}) == [{"field": "top_p", "message": text}]


def test_an_answer_in_the_background_has_warnings(gateway: HttpGateway) -> None:
    """Also when it is asked for later, as whole or as a stream."""
    _, headers, answer = gateway.ask("POST", "/v1/responses", BODIES["responses"] | {"background": True})
    (warning,) = json.loads(headers[HEADER])
    assert warning["field"] == "top_p"
    name = json.loads(answer)["id"]
    for query in ("", "?stream=true"):
        status, later, _ = gateway.ask("GET", f"/v1/responses/{name}{query}")
        assert (status, later[HEADER]) == (200, headers[HEADER])
    status, cancelled, _ = gateway.ask("POST", f"/v1/responses/{name}/cancel")
    assert (status, cancelled[HEADER]) == (200, headers[HEADER])


def test_without_a_mistake_there_is_no_header(gateway: HttpGateway) -> None:
    assert warned(gateway, "chat/completions", CHAT | {"top_p": 1}) is None


def test_fields_have_the_names_of_the_api(gateway: HttpGateway) -> None:
    body = {"model": "tiny", "messages": SAID, "max_tokens": 10**6}
    for path in ("chat/completions", "messages"):
        (warning,) = warned(gateway, path, body | {"stop" if path[0] == "c" else "stop_sequences": [" "]})
        assert warning["field"] == "max_tokens"
        assert warning["message"].startswith("max_tokens = 1000000 has no effect")


def test_a_response_format_beside_a_call_is_warned_of(gateway: HttpGateway, thinker: str) -> None:
    asked = {"model": thinker, "messages": SAID, "tools": TOOLS, "tool_choice": "required", "max_tokens": 2}
    (warning,) = warned(gateway, "chat/completions", asked | {"response_format": {"type": "json_object"}})
    assert warning["field"] == "response_format"
    assert warning["message"].startswith("response_format has no effect: by its tool_choice")


def test_a_schema_of_a_tool_is_warned_of_as_its_own(gateway: HttpGateway, thinker: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "phone"}}}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    asked = {"model": thinker, "messages": SAID, "tools": tools, "max_tokens": 2}
    (warning,) = warned(gateway, "chat/completions", asked)
    assert warning["field"] == "tools"
    assert warning["message"].startswith("tools: format phone is not checked")
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    warnings = warned(gateway, "chat/completions", asked | {"tool_choice": "auto", "response_format": form})
    assert {one["field"] for one in warnings} == {"tools", "response_format"}


def test_prompts_that_differ_have_one_entry(gateway: HttpGateway) -> None:
    asked = {"model": "tiny", "prompt": ["a", "a", "b c d e f", "g h i j k l m n"], "max_tokens": 10**6}
    (warning,) = warned(gateway, "completions", asked | {"stop": " "})
    assert warning["field"] == "max_tokens"
    assert warning["message"].startswith("max_tokens = 1000000 has no effect")
    assert warning["message"].endswith(" (and 2 more like it of other prompts)")


def test_more_than_fit_are_counted(gateway: HttpGateway) -> None:
    """Also with characters that headers do not hold."""
    properties = {f"p{number}": {"format": f"\u96ea\r\n{number}" + "x" * 90} for number in range(9)}
    schema = {"name": "s", "schema": {"type": "object", "properties": properties}}
    wanted = {"response_format": {"type": "json_schema", "json_schema": schema}}
    asked = {"model": "tiny", "messages": SAID, "max_tokens": 2}
    *fitting, last = warned(gateway, "chat/completions", asked | wanted)
    assert fitting
    assert last == {"message": f"warnings that do not fit into 2048 bytes: {9 - len(fitting)}"}
