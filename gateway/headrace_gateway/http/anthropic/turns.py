"""Messages of Anthropic's API, as templates take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from headrace_gateway.http.failures import Failure, invalid


class Block(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message; `cache_control` changes nothing, as all prefixes are cached."""

    type: str
    text: str | None = None
    cache_control: Any = None
    citations: None = None
    source: Any = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: Any = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None


class Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


def messages_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return messages as the client takes them: a turn with results of tools becomes several.

    Raises:
        Failure: a block is of no supported type, or lacks a part.
    """
    found: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        path = f"messages[{number}].content"
        if isinstance(turn.content, str):
            found.append({"role": turn.role, "content": turn.content})
        elif turn.role == "assistant":
            found.append(_assistant(turn.content, path))
        else:
            found += _user(turn.content, path)
    return found


def texts_of(content: str | list[Block], path: str) -> str | list[dict[str, Any]]:
    """Return a content of texts. Raises Failure: a block is none."""
    if isinstance(content, str):
        return content
    return [_text(block, f"{path}[{number}]") for number, block in enumerate(content)]


def _user(blocks: list[Block], path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        field = f"{path}[{number}]"
        if block.type == "tool_result":
            found.append(_result(block, field))
        elif found and found[-1]["role"] == "user":
            found[-1]["content"].append(_text(block, field))
        else:
            found.append({"role": "user", "content": [_text(block, field)]})
    return found or [{"role": "user", "content": []}]


def _result(block: Block, path: str) -> dict[str, Any]:
    if block.tool_use_id is None:
        raise invalid(f"{path}.tool_use_id", "is missing")
    found = {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "content": texts_of(block.content or "", f"{path}.content"),
    }
    return found | ({"is_error": True} if block.is_error else {})


def _assistant(blocks: list[Block], path: str) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for number, block in enumerate(blocks):
        field = f"{path}[{number}]"
        if block.type == "tool_use":
            calls.append(_call(block, field))
        elif block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        else:
            texts.append(_text(block, field))
    found: dict[str, Any] = {"role": "assistant", "content": texts or ("" if calls else [])}
    if calls:
        found["tool_calls"] = calls
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    return found


def _call(block: Block, path: str) -> dict[str, Any]:
    for name in ("id", "name", "input"):
        if getattr(block, name) is None:
            raise invalid(f"{path}.{name}", "is missing")
    arguments = msgspec.json.encode(block.input).decode()
    return {"id": block.id, "function": {"name": block.name, "arguments": arguments}}


def _text(block: Block, path: str) -> dict[str, Any]:
    if block.type != "text" or block.text is None:
        raise _not_supported(path, block.type)
    return {"text": block.text}


def _not_supported(path: str, kind: str) -> Failure:
    text = f'of type "{kind[:32]}" is not supported here: texts are, calls of tools, their results, and thoughts'
    return invalid(path, text, "unsupported_value")
