"""Bodies of Anthropic's messages, and what they become."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.bodies import MAX_MESSAGES
from headrace_gateway.http.failures import Failure, invalid

HARMLESS: dict[str, Any] = {
    "metadata": None,
    "service_tier": ("auto", "standard_only"),
    "thinking": ({"type": "disabled"},),
    "tools": ([],),
}
"""Values of fields that change nothing here; None: any value."""

_NO_TOOLS = ": calls of tools are not parsed"
REFUSED = {
    "tools": _NO_TOOLS,
    "tool_choice": _NO_TOOLS,
    "thinking": "",
    "container": "",
    "context_management": "",
    "mcp_servers": "",
    "output_config": "",
}
"""Fields that are not supported, and why."""

NAMES = {
    "max_new_tokens": "max_tokens",
    "stop_words": "stop_sequences",
    "model_name": "model",
    "template_variables": "chat_template_kwargs",
}
"""What the API calls fields of the wire contract, where it has another name."""


class Block(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message. Only texts are supported; `cache_control` changes nothing, as all prefixes are cached."""

    type: str
    text: str | None = None
    cache_control: Any = None
    citations: None = None
    source: Any = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None


class Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A conversation. `chat_template_kwargs` is Headrace's own."""

    model: str
    messages: Annotated[list[Turn], msgspec.Meta(max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def prompt(self) -> dict[str, Any]:
        """Return the prompt. A last message of the assistant is continued.

        Raises:
            Failure: there are no messages, or a part is no text.
        """
        if not self.messages:
            raise invalid("messages", "is empty")
        found = [
            {"role": turn.role, "content": _content(turn.content, f"messages[{number}].content")}
            for number, turn in enumerate(self.messages)
        ]
        if self.system is not None:
            found.insert(0, {"role": "system", "content": _content(self.system, "system")})
        continued = self.messages[-1].role == "assistant"
        return {
            "messages": found,
            "add_generation_prompt": False if continued else None,
            "continue_final_message": True if continued else None,
            "template_variables": self.chat_template_kwargs,
        }


class MessageRequest(CountRequest, forbid_unknown_fields=True, kw_only=True):
    """A conversation to go on with."""

    max_tokens: int
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    def config(self) -> dict[str, Any]:
        """Return the generation config. `seed` is Headrace's own."""
        return {
            "max_new_tokens": self.max_tokens,
            "stop_words": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
        }


def _content(content: str | list[Block], path: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [_text(block, f"{path}[{number}]") for number, block in enumerate(content)]


def _text(block: Block, path: str) -> dict[str, Any]:
    if block.type != "text" or block.text is None:
        raise _no_text(path, block.type)
    return {"text": block.text}


def _no_text(path: str, kind: str) -> Failure:
    return invalid(path, f'of type "{kind[:32]}" is not supported: only texts are', "unsupported_value")
