"""Messages of chats, as OpenAI's API has them, for the model's template."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace_gateway.http.failures import invalid


class Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message. Only texts are supported."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: str | None = None


class Function(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call of a function."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call that an assistant message made."""

    id: str
    function: Function
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message. Clients send back of an answer, null or empty: refusal, audio, function_call, annotations."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None


def messages_of(messages: list[Message]) -> list[dict[str, Any]]:
    """Return messages as the client takes them. The role "developer" is the template's "system".

    Raises:
        Failure: a part is no text.
    """
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _message(message: Message, path: str) -> dict[str, Any]:
    if message.annotations:
        raise invalid(f"{path}.annotations", "is not supported", "unsupported_parameter")
    found: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    if isinstance(message.content, list):
        found["content"] = [_part(part, f"{path}.content[{number}]") for number, part in enumerate(message.content)]
    elif message.content is not None:
        found["content"] = message.content
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in message.tool_calls
        ]
    return found


def _part(part: Part, path: str) -> dict[str, Any]:
    if part.type != "text" or part.text is None:
        raise invalid(path, f'of type "{part.type[:32]}" is not supported: only texts are', "unsupported_value")
    return {"text": part.text}
