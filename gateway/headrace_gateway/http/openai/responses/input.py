"""Input of responses, as templates take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from headrace_gateway.http.failures import invalid


class Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message. Only texts are supported."""

    type: str
    text: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    image_url: Any = None
    file_id: Any = None
    file_data: Any = None
    filename: Any = None
    detail: Any = None
    input_audio: Any = None


class InputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message, a thought, a call or its result, given or as a response had it."""

    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    id: str | None = None
    status: str | None = None
    phase: None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: None = None
    namespace: None = None
    caller: None = None


_NEEDS = {
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}


def messages_of(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Return messages: what the assistant thought, said and called without a pause is one.

    Raises:
        Failure: an item lacks a part, or has one that is no text.
    """
    found: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        _add(found, item, f"input[{number}]")
    return found


def _add(found: list[dict[str, Any]], item: InputItem, path: str) -> None:
    for name in _NEEDS[item.type]:
        if getattr(item, name) is None:
            raise invalid(f"{path}.{name}", "is missing")
    if item.type == "function_call_output":
        text = _text(item.output, f"{path}.output")
        found.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
    elif item.type == "function_call":
        call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
        _assistant(found, ()).setdefault("tool_calls", []).append(call)
    elif item.type == "reasoning":
        thought = _text(item.content, f"{path}.content") or _text(item.summary, f"{path}.summary")
        if thought:
            _assistant(found, ("reasoning_content", "content", "tool_calls"))["reasoning_content"] = thought
    elif item.role == "assistant":
        _assistant(found, ("content", "tool_calls"))["content"] = _text(item.content, f"{path}.content")
    else:
        role = "system" if item.role == "developer" else item.role
        found.append({"role": role, "content": _text(item.content, f"{path}.content")})


def _assistant(found: list[dict[str, Any]], new: tuple[str, ...]) -> dict[str, Any]:
    """Return the assistant's last message, or a new one if another role spoke since, or it has one of some parts."""
    last = found[-1] if found else None
    if last is None or last["role"] != "assistant" or any(last.get(name) for name in new):
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _text(content: str | list[Part] | None, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part(part, f"{path}[{number}]") for number, part in enumerate(content))


_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def _part(part: Part, path: str) -> str:
    if part.type not in _TEXTS or part.text is None:
        raise invalid(path, f'of type "{part.type[:32]}" is not supported: only texts are', "unsupported_value")
    return part.text
