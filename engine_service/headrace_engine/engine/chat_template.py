"""Renders a conversation with a model's chat template (Jinja, sandboxed)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace_engine.errors import InvalidArgument
from headrace_engine.types import Chat, ChatMessage, ToolCall


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        variables: what every rendering sees, such as bos_token.

    Raises:
        InvalidArgument: BAD_TEMPLATE, the text is no Jinja.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], undefined=jinja2.Undefined
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._variables = dict(variables)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise _bad_template(f"the chat template has a syntax error in line {error.lineno}: {error}") from error

    def render(self, chat: Chat) -> str:
        """The text of a conversation.

        Raises:
            InvalidArgument: INVALID_FIELD for a malformed chat; BAD_TEMPLATE with the template's own message.
        """
        messages = [_message(message, index) for index, message in enumerate(chat.messages)]
        opens_answer = _opens_answer(chat)
        variables = {name: _json(value, f"chat.template_variables.{name}") for name, value in _sorted(chat)}
        tools = [_json(tool, f"chat.tools[{index}]") for index, tool in enumerate(chat.tools)]
        scope = {**self._variables, **variables}
        try:
            text = self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=opens_answer, **scope
            )
        except Exception as error:  # a template is the model's code: whatever it raises is its answer
            raise _bad_template(f"the chat template failed: {error}") from error
        return _cut_after_final(text, chat) if chat.continue_final_message else text


def _sorted(chat: Chat) -> list[tuple[str, str]]:
    return sorted(chat.template_variables.items())


def _opens_answer(chat: Chat) -> bool:
    if not chat.messages:
        raise InvalidArgument.field("chat.messages", "is empty: send at least one message")
    if not chat.continue_final_message:
        return chat.add_generation_prompt is not False
    if chat.add_generation_prompt:
        raise InvalidArgument.field("chat.add_generation_prompt", "= True contradicts continue_final_message = True")
    return False


def _cut_after_final(text: str, chat: Chat) -> str:
    content = chat.messages[-1].content
    if not isinstance(content, str) or not content.strip():
        raise InvalidArgument.field("chat.continue_final_message", "needs a final message with a text")
    place = text.rfind(content.strip())
    if place < 0:
        raise _bad_template("the chat template does not show the final message, so it cannot be continued")
    return text[: place + len(content.strip())]


def _message(message: ChatMessage, index: int) -> dict[str, Any]:
    if not message.role:
        raise InvalidArgument.field(f"chat.messages[{index}].role", "is empty")
    shown: dict[str, Any] = {"role": message.role}
    if isinstance(message.content, tuple):
        shown["content"] = [{"type": "text", "text": text} for text in message.content]
    elif message.content is not None:
        shown["content"] = message.content
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            shown[name] = getattr(message, name)
    if message.tool_calls:
        path = f"chat.messages[{index}].tool_calls"
        shown["tool_calls"] = [_tool_call(call, f"{path}[{place}]") for place, call in enumerate(message.tool_calls)]
    if message.extra_json:
        shown |= _object(message.extra_json, f"chat.messages[{index}].extra_json")
    return shown


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
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument.field(field, f"is not JSON: {error}") from error


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _bad_template(message: str) -> InvalidArgument:
    return InvalidArgument.field("chat", f": {message}", reason="BAD_TEMPLATE")
