"""Check that a rendered chat contains everything in the chat: a probe has markers instead of its texts."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace_engine.engine.chat.variants import BETWEEN_PARTS, Arguments, Parts

Messages = list[dict[str, Any]]

# Like the marks of a shield: private-use characters around digits, which do not occur by accident.
_OPEN, _CLOSE = f"\ue004{secrets.randbits(64)}:", "\ue005"
_SIGN = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a chat that must appear in the rendered text.

    Attributes:
        field: its path in the request.
        message: index of its message; None: it is a tool.
        of_content: it is the message's content, or a part of it.
    """

    field: str
    message: int | None = None
    of_content: bool = False


@dataclass(frozen=True, slots=True)
class ChatTexts:
    """Messages and tools as passed to templates.

    Attributes:
        joined: indices of messages whose parts were joined to one text before rendering.
    """

    messages: Messages
    tools: list[dict[str, Any]]
    joined: frozenset[int] = frozenset()

    @property
    def in_parts(self) -> list[int]:
        """Indices of the messages whose content is in parts."""
        return [index for index, message in enumerate(self.messages) if isinstance(message.get("content"), Parts)]

    def other_forms(self, which: Collection[int | None]) -> Iterator[ChatTexts]:
        """Yield variants with the contents of some messages as one text, if any is in parts, then as one part each."""
        if any(index in which for index in self.in_parts):
            yield self._changed(which, str)
        yield self._changed(which, lambda text: Parts.of([text]))

    def _changed(self, which: Collection[int | None], form: Callable[[str], Any]) -> ChatTexts:
        messages, several = list(self.messages), set(self.joined)
        for index, message in enumerate(self.messages):
            content = message.get("content")
            if index in which and isinstance(content, Parts | str):
                several |= {index} if isinstance(content, Parts) and len(content) > 1 else set()
                text = content if isinstance(content, str) else BETWEEN_PARTS.join(content.texts)
                messages[index] = {**message, "content": form(text)}
        return ChatTexts(messages, self.tools, frozenset(several))

    def read_joined(self) -> list[int]:
        """Return the indices of messages with several parts that the template read as one text."""
        contents = ((index, message.get("content")) for index, message in enumerate(self.messages))
        read = (index for index, content in contents if isinstance(content, Parts) and content.joined)
        return sorted(self.joined.union(read))

    def is_seen_in(self, text: str) -> bool:
        """True if the text contains all contents in order. False for chats with tools or calls, which need a probe."""
        if self.tools or any("tool_calls" in message for message in self.messages):
            return False
        cursor = 0
        for content in self._contents():
            index = text.find(content.strip(), cursor)
            if index < 0:
                return False
            cursor = index + len(content.strip())
        return True

    def probe(self) -> tuple[ChatTexts, list[Part]]:
        """Return the chat with a marker instead of each text that a template may omit, and the parts that they mark."""
        signs = _Signs()
        messages = [_with_signs(message, index, signs) for index, message in enumerate(self.messages)]
        tools = [_tool_with_sign(tool, f"chat.tools[{index}]", signs) for index, tool in enumerate(self.tools)]
        return ChatTexts(messages, tools), signs.parts

    def _contents(self) -> Iterator[str]:
        for message in self.messages:
            content = message.get("content")
            texts: Iterable[Any] = content.texts if isinstance(content, Parts) else [content]
            yield from (text for text in texts if isinstance(text, str))


def left_out(parts: list[Part], probed: str) -> list[Part]:
    """Return the parts whose markers are missing from a rendered probe."""
    seen = {int(sign[1]) for sign in _SIGN.finditer(probed)}
    return [part for number, part in enumerate(parts) if number not in seen]


class _Signs:
    """Create numbered markers, and record the part of the chat that each one marks."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def new(self, field: str, message: int | None = None, *, of_content: bool = False) -> str:
        self.parts.append(Part(field, message, of_content))
        return f"{_OPEN}{len(self.parts) - 1}{_CLOSE}"


def _with_signs(message: dict[str, Any], index: int, signs: _Signs) -> dict[str, Any]:
    path, content, calls = f"chat.messages[{index}]", message.get("content"), message.get("tool_calls")
    changed = dict(message)
    if isinstance(content, Parts):
        texts = enumerate(content.texts)
        changed["content"] = content.with_texts(
            signs.new(f"{path}.content[{part}]", index, of_content=True) if text.strip() else text
            for part, text in texts
        )
    elif isinstance(content, str) and content.strip():
        changed["content"] = signs.new(f"{path}.content", index, of_content=True)
    if isinstance(calls, list):
        path = f"{path}.tool_calls"
        changed["tool_calls"] = [_call(call, f"{path}[{n}]", index, signs) for n, call in enumerate(calls)]
    return changed


def _call(call: Any, path: str, index: int, signs: _Signs) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if function is None or not isinstance(arguments, Arguments):
        return call
    changed = {**function, "name": signs.new(f"{path}.name", index)}
    if arguments:
        sign = signs.new(f"{path}.arguments_json", index)
        values = dict.fromkeys(arguments, sign)
        changed["arguments"] = Arguments(values, json.dumps(values, ensure_ascii=False))
    return {**call, "function": changed}


def _tool_with_sign(tool: dict[str, Any], path: str, signs: _Signs) -> dict[str, Any]:
    function = tool.get("function")
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return {**tool, "function": {**function, "name": signs.new(path)}}
    return {**tool, "name": signs.new(path)} if isinstance(tool.get("name"), str) else tool
