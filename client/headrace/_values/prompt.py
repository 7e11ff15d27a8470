"""Setting prompts (text, token ids or messages) in request messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2

from headrace._values.fill import fill, fill_one
from headrace._values.refusals import invalid
from headrace._values.scalars import to_json

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or messages."""

ChatMessages = Sequence[Mapping[str, Any]]
"""Messages as in OpenAI's API: {"role": …, "content": text or parts, "name": …, "tool_calls": […], …}."""

_SAME = ("add_generation_prompt", "continue_final_message", "tool_format", "keep_marks")
_CHAT_FIELDS = (*_SAME, "template_variables", "tools", "tool_choice")
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")


def set_prompt(
    request: Message,
    prompt: Prompt | None,
    *,
    text: str | None,
    ids: Sequence[int] | None,
    messages: ChatMessages | None,
    options: Mapping[str, Any],
) -> None:
    """Set the prompt of a request that has the fields text, chat, add_special_tokens, and maybe token_ids.

    Args:
        request: the request message.
        prompt: text, token ids or messages, distinguished by type.
        text: text, without a chat template.
        ids: token ids, used unchanged; also in one row, as an array of shape (1, n).
        messages: conversation for the chat template.
        options: keywords of `ChatFields`.

    Raises:
        TypeError: not exactly one prompt is given.
        InvalidRequestError: the prompt has the wrong type, or does not take an option.
    """
    given = {"prompt": prompt, "text": text, "ids": ids, "messages": messages}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise TypeError(f"give exactly one of prompt, text, ids and messages, not {' and '.join(named) or 'none'}")
    # An iterator is made a list, since it is examined twice.
    value = _listed(given[named[0]])
    kind = named[0] if prompt is None else _kind_of(value)
    if kind == "ids" and "token_ids" not in request.DESCRIPTOR.fields_by_name:
        raise invalid("prompt", value, "text or messages; these are ids already")
    _check_options(kind, options)
    if kind == "messages":
        fill(request, {"chat": build_chat(value, options)})
    elif kind == "ids":
        fill(request, {"token_ids": _one_row(value)})
    else:
        fill(request, {"text": value, "add_special_tokens": options.get("add_special_tokens")})


def _kind_of(prompt: Any) -> str:
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        raise invalid("prompt", prompt, "a string, a list of token ids, or a list of messages")
    return "messages" if any(isinstance(item, Mapping) for item in prompt) else "ids"


def _listed(value: Any) -> Any:
    """Return an iterable as a list; text, bytes, mappings and other values unchanged."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        return value
    return list(value)


def _one_row(ids: Any) -> Any:
    """Return the ids of a list with one row, as tokenizers return them; other values unchanged.

    Raises:
        InvalidRequestError: there are several rows.
    """
    rows = ids if isinstance(ids, list) else []
    if not any(_is_row(row) for row in rows):
        return ids
    if len(rows) > 1:
        raise invalid("ids", ids, f"one row of ids, not {len(rows)}; start a request for each")
    return list(rows[0])


def _is_row(item: Any) -> bool:
    """True for a list, and for an array or tensor with an extent; a tensor without one is a number."""
    return len(item.shape) > 0 if hasattr(item, "shape") else isinstance(item, list | tuple)


def _list(path: str, value: Any, what: str) -> list[Any]:
    """Return an optional list; [] for None."""
    items = [] if value is None else _listed(value)
    if not isinstance(items, list):
        raise invalid(path, value, f"a list of {what}")
    return items


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    refused = {"text": _CHAT_FIELDS, "ids": (*_CHAT_FIELDS, "add_special_tokens"), "messages": ("add_special_tokens",)}
    for name in refused[kind]:
        if options.get(name) is not None:
            raise invalid(name, options[name], f"left out when the prompt is given as {kind}")


def build_chat(messages: Any, options: Mapping[str, Any]) -> generation_pb2.Chat:
    """Return the wire's Chat for a list of messages and the keywords of `ChatFields`.

    Raises:
        InvalidRequestError: a message is invalid; the error names its index.
    """
    if isinstance(messages, str | Mapping) or not hasattr(messages, "__iter__"):
        raise invalid("messages", messages, "a list of messages")
    chat = generation_pb2.Chat()
    for index, message in enumerate(messages):
        _add_message(chat.messages.add(), message, f"messages[{index}]")
    flags = {name: options.get(name) for name in _SAME}
    variables = _variables(options.get("template_variables"))
    fill(chat, {**flags, "template_variables": variables, "tools": _tools(options.get("tools"))})
    choice = options.get("tool_choice")
    fill(chat, {"tool_choice": {"mode": choice} if isinstance(choice, str) else choice})
    return chat


def _variables(given: Any) -> dict[Any, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise invalid("template_variables", given, 'a mapping such as {"enable_thinking": False}')
    return {name: to_json(value, f"template_variables[{name!r}]") for name, value in given.items()}


def _tools(given: Any) -> list[str]:
    tools = enumerate(_list("tools", given, "functions, as mappings or as JSON text"))
    return [tool if isinstance(tool, str) else to_json(tool, f"tools[{index}]") for index, tool in tools]


def _add_message(target: generation_pb2.ChatMessage, message: Any, path: str) -> None:
    if not isinstance(message, Mapping):
        raise invalid(path, message, 'a mapping such as {"role": "user", "content": "Hello"}')
    if not isinstance(message.get("role"), str):
        raise invalid(f"{path}.role", message.get("role"), '"system", "user", "assistant", "tool" or another role')
    listed = _list(f"{path}.tool_calls", message.get("tool_calls"), "tool calls")
    calls = [_tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(listed)]
    extra = {key: value for key, value in message.items() if key not in _MESSAGE_KEYS}
    fields = {
        "role": message["role"],
        "name": message.get("name"),
        "tool_calls": calls,
        "tool_call_id": message.get("tool_call_id"),
        "extra_json": extra or None,
    }
    fill(target, fields, path)
    _set_content(target, message.get("content"), path)


def _set_content(target: generation_pb2.ChatMessage, content: Any, path: str) -> None:
    """Set the content: one key here, two fields on the wire; errors name the key."""
    if content is None and target.role == "user":
        raise invalid(f"{path}.content", content, "a string, or a list of parts")
    if content is None or isinstance(content, str):
        fill(target, {"content": content}, path)
        return
    if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
        raise invalid(f"{path}.content", content, 'a string, or a list of parts such as {"type": "text", "text": …}')
    for index, part in enumerate(content):
        fill_one(target.parts.add(), part, f"{path}.content[{index}]")


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    """Return a tool call, given as {"id", "type": "function", "function": {"name", "arguments"}} or without nesting."""
    if not isinstance(call, Mapping):
        raise invalid(path, call, 'a mapping such as {"id": …, "function": {"name": …, "arguments": …}}')
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise invalid(path, call, "given with the function's name")
    return {"id": call.get("id", ""), "name": function["name"], "arguments_json": function.get("arguments", {})}
