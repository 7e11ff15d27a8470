"""Renders a conversation with a model's chat template: Jinja in a sandbox, and in the process of `rendering`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jinja2

from headrace_engine.engine.sandbox import sandbox
from headrace_engine.engine.shield import Shield
from headrace_engine.errors import InvalidArgument
from headrace_engine.request_types import Chat, ChatMessage, ToolCall

_FINAL = f"\ue002{secrets.randbits(64)}\ue003"
"""Stands where the final message ends while it is rendered to be continued."""

MAX_DEPTH = 100
"""Levels of lists and objects in a text of JSON that a chat brings."""

MAX_REASON = 1000
"""Characters of a template's own message that are passed on: a failure must fit into the head of an answer."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which messages carry what a model thought."""

_TAKEN = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables that the rest of the chat sets."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        variables: what every rendering sees, such as bos_token.
        field: path of the field that is to blame for a template that is none.

    Raises:
        InvalidArgument: BAD_TEMPLATE, the text is no Jinja.
    """

    def __init__(self, source: str, variables: Mapping[str, str], field: str = "chat") -> None:
        self._variables = dict(variables)
        try:
            self._template = sandbox().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            text = f"has a syntax error in the chat template, line {error.lineno}: {error.message}"
            raise InvalidArgument.field(field, text, reason="BAD_TEMPLATE") from error
        except Exception as error:  # One that nests too deep, or computes what cannot be computed.
            text = f"has a chat template that cannot be compiled: {_words(error)}"
            raise InvalidArgument.field(field, text, reason="BAD_TEMPLATE") from error

    def render(self, chat: Chat, shield: Shield | None = None) -> str:
        """The text of a conversation.

        Args:
            shield: marks every text of the messages and tools; None: they stay as they are.

        Raises:
            InvalidArgument: INVALID_FIELD for a malformed chat; BAD_TEMPLATE with the template's own message.
        """
        shield = shield or Shield()
        messages = _map_texts(_messages(chat), shield.mark)
        tools = [_object(tool, f"chat.tools[{index}]") for index, tool in enumerate(chat.tools)]
        scope = self._variables | {
            "documents": None,  # As transformers has it where there are none.
            **_variables(chat),
            "messages": _open_final(messages) if chat.continue_final_message else messages,
            "tools": _map_texts(tools, shield.mark) or None,
            "add_generation_prompt": _opens_answer(chat),
        }
        try:
            text = self._template.render(scope)
        except Exception as error:  # a template is the model's code: whatever it raises is its answer
            raise _bad_template(f"the chat template failed: {shield.unmark(_words(error))}") from error
        return _cut_after_final(text) if chat.continue_final_message else text


class _Parts(list[dict[str, Any]]):
    """Content in parts. A template that takes content as one text would show a Python list: that is an error."""

    def _refuse(self, *_: object) -> NoReturn:
        raise jinja2.TemplateError("it takes the content of a message as one text, not in parts")

    __str__ = __add__ = __radd__ = _refuse


def _variables(chat: Chat) -> dict[str, Any]:
    taken = sorted(_TAKEN & chat.template_variables.keys())
    if taken:
        raise InvalidArgument.field(f"chat.template_variables.{taken[0]}", "is set by another field of the chat")
    variables = sorted(chat.template_variables.items())
    return {name: _json(text, f"chat.template_variables.{name}") for name, text in variables}


def _opens_answer(chat: Chat) -> bool:
    if not chat.continue_final_message:
        return chat.add_generation_prompt is not False
    if chat.add_generation_prompt:
        raise InvalidArgument.field("chat.add_generation_prompt", "= True contradicts continue_final_message = True")
    return False


def _messages(chat: Chat) -> list[dict[str, Any]]:
    if not chat.messages:
        raise InvalidArgument.field("chat.messages", "is empty: send at least one message")
    return [_message(message, f"chat.messages[{index}]") for index, message in enumerate(chat.messages)]


def _message(message: ChatMessage, path: str) -> dict[str, Any]:
    if not message.role:
        raise InvalidArgument.field(f"{path}.role", "is empty")
    shown: dict[str, Any] = {"role": message.role}
    if isinstance(message.content, tuple):
        shown["content"] = _Parts({"type": "text", "text": text} for text in message.content)
    elif message.content is not None:
        shown["content"] = message.content
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            shown[name] = getattr(message, name)
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        shown["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{place}]") for place, call in calls]
    return _with_reasoning(shown | _extra(message, shown, f"{path}.extra_json"))


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """What a model thought is shown under each name that templates read, as transformers does it."""
    thought = next((message[name] for name in _REASONING if name in message), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _extra(message: ChatMessage, shown: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Further keys. Those that are null are absent, since templates look whether a key is there."""
    found = _object(message.extra_json, path) if message.extra_json else {}
    extra = {key: value for key, value in found.items() if value is not None}
    twice = sorted(extra.keys() & shown.keys())
    if twice:
        raise InvalidArgument.field(path, f"sets {twice[0]!r}, which the message has already")
    return extra


def _tool_call(call: ToolCall, path: str) -> dict[str, Any]:
    arguments = _object(call.arguments_json or "{}", f"{path}.arguments_json")
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _object(text: str, field: str) -> dict[str, Any]:
    value = _json(text, field)
    if not isinstance(value, dict):
        raise InvalidArgument.field(field, "is not a JSON object")
    return value


def _json(text: str, field: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument.field(field, f"is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep(field) from error
    if not _is_shallow(value):
        raise _too_deep(field)
    return value


def _too_deep(field: str) -> InvalidArgument:
    return InvalidArgument.field(field, f"nests lists and objects more than {MAX_DEPTH} deep")


def _is_shallow(value: Any) -> bool:
    """Whether it has at most MAX_DEPTH levels: what walks over it later, templates too, does so by recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [one for one in level if isinstance(one, (dict, list))]
        if not level:
            return True
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return False


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same structure with every text changed, names of keys as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(item, change) for key, item in value.items()}
    return type(value)(_map_texts(item, change) for item in value) if isinstance(value, list) else value


def _open_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark at the end of the last one. A space behind it tells whether the template trims."""
    *earlier, final = messages
    content = final.get("content")
    if isinstance(content, str):
        return [*earlier, {**final, "content": f"{content}{_FINAL} "}]
    if not isinstance(content, list) or not content or not _is_text(content[-1]):
        raise InvalidArgument.field("chat.continue_final_message", "needs a final message with a text")
    *parts, last = content
    return [*earlier, {**final, "content": _Parts([*parts, {**last, "text": f"{last['text']}{_FINAL} "}])}]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _cut_after_final(text: str) -> str:
    place = text.rfind(_FINAL)
    if place < 0:
        raise _bad_template("the chat template does not show the final message, so it cannot be continued")
    trimmed = not text.startswith(" ", place + len(_FINAL))
    return text[:place].rstrip() if trimmed else text[:place]


def _words(error: Exception) -> str:
    """What an exception says; its kind where it says nothing."""
    text = (str(error) or type(error).__name__).encode(errors="replace").decode()
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"


def _bad_template(message: str) -> InvalidArgument:
    return InvalidArgument.field("chat", f"cannot be rendered: {message}", reason="BAD_TEMPLATE")
