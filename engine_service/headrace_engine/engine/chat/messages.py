"""The messages, tools and variables of a chat as templates see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from headrace_proto.pure.strict_json import BadJson, NestedTooDeep, read_json

from headrace_engine.chat_types import Chat, ChatMessage, ToolCall
from headrace_engine.engine.chat.variants import Arguments, Parts
from headrace_engine.errors import InvalidArgument

MAX_DEPTH = 100
"""Maximum nesting of lists and objects in JSON of a chat."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which messages carry a model's reasoning."""

_TAKEN = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables that other fields of the chat set."""


def template_variables(chat: Chat) -> dict[str, Any]:
    """Return the template variables of a chat.

    Raises:
        InvalidArgument: one is not valid JSON, or is set by another field.
    """
    taken = sorted(_TAKEN & chat.template_variables.keys())
    if taken:
        raise InvalidArgument.field(f"chat.template_variables.{taken[0]}", "is set by another field of the chat")
    variables = sorted(chat.template_variables.items())
    return {name: _json(text, f"chat.template_variables.{name}") for name, text in variables}


def template_tools(chat: Chat) -> list[dict[str, Any]]:
    """Return the tools of a chat.

    Raises:
        InvalidArgument: one is not a JSON object.
    """
    return [_object(tool, f"chat.tools[{index}]") for index, tool in enumerate(chat.tools)]


def template_messages(chat: Chat) -> list[dict[str, Any]]:
    """Return the messages of a chat.

    Raises:
        InvalidArgument: there is none, or one is malformed.
    """
    if not chat.messages:
        raise InvalidArgument.field("chat.messages", "is empty: send at least one message")
    return [_message(message, f"chat.messages[{index}]") for index, message in enumerate(chat.messages)]


def _message(message: ChatMessage, path: str) -> dict[str, Any]:
    if not message.role:
        raise InvalidArgument.field(f"{path}.role", "is empty")
    shown: dict[str, Any] = {"role": message.role}
    if isinstance(message.content, tuple):
        shown["content"] = Parts.of(message.content)
    elif message.content is not None:
        shown["content"] = message.content
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            shown[name] = getattr(message, name)
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        shown["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{index}]") for index, call in calls]
    return _with_reasoning(shown | _extra(message, shown, f"{path}.extra_json"))


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Copy the reasoning to every key that templates read, as transformers does."""
    thought = next((message[name] for name in _REASONING if name in message), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _extra(message: ChatMessage, shown: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the extra keys. Null values are omitted, since templates check whether a key exists."""
    found = _object(message.extra_json, path) if message.extra_json else {}
    extra = {key: value for key, value in found.items() if value is not None}
    twice = sorted(extra.keys() & shown.keys())
    if twice:
        raise InvalidArgument.field(path, f"sets {twice[0]!r}, which the message has already")
    return extra


def _tool_call(call: ToolCall, path: str) -> dict[str, Any]:
    text = call.arguments_json or "{}"
    # A model wrote it, perhaps with a key twice, and the chat can go on nevertheless.
    arguments = Arguments(_object(text, f"{path}.arguments_json", json.loads), text)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _object(text: str, field: str, read: Callable[[str], Any] = read_json) -> dict[str, Any]:
    value = _json(text, field, read)
    if not isinstance(value, dict):
        raise InvalidArgument.field(field, "is not a JSON object")
    return value


def _json(text: str, field: str, read: Callable[[str], Any] = read_json) -> Any:
    try:
        value = read(text)
    except (NestedTooDeep, RecursionError) as error:
        raise _too_deep(field) from error
    except BadJson as error:
        raise InvalidArgument.field(field, str(error)) from error
    except ValueError as error:
        raise InvalidArgument.field(field, f"is not JSON: {error}") from error
    if not _is_shallow(value):
        raise _too_deep(field)
    return value


def _too_deep(field: str) -> InvalidArgument:
    return InvalidArgument.field(field, f"nests lists and objects more than {MAX_DEPTH} deep")


def _is_shallow(value: Any) -> bool:
    """True if a value has at most MAX_DEPTH levels: templates and other code walk it recursively."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [one for one in level if isinstance(one, (dict, list))]
        if not level:
            return True
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return False
