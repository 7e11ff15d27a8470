"""What a response consists of: messages, thoughts and calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """What the model says."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """What the model thinks."""

    text: str


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """A message."""

    id: str
    content: list[OutputText]
    status: ItemStatus
    role: Literal["assistant"] = "assistant"


class Reasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    """A thought."""

    id: str
    content: list[ReasoningText]
    status: ItemStatus
    summary: list[Any] = []


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


Item = OutputMessage | Reasoning | FunctionCall


def message_of(items: Sequence[Item]) -> dict[str, Any]:
    """Return the message that a response is in the conversation after it."""
    texts = [part.text for item in items if isinstance(item, OutputMessage) for part in item.content]
    thoughts = [part.text for item in items if isinstance(item, Reasoning) for part in item.content]
    calls = [
        {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
        for item in items
        if isinstance(item, FunctionCall)
    ]
    found: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    return found | ({"tool_calls": calls} if calls else {})
