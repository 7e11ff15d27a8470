"""Bodies of Anthropic's messages, and what they become."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.anthropic.tools import Tool, ToolChoice, tools_of
from headrace_gateway.http.anthropic.turns import Block, Turn, messages_of, texts_of
from headrace_gateway.http.bodies import MAX_MESSAGES
from headrace_gateway.http.failures import invalid

HARMLESS: dict[str, Any] = {
    "metadata": None,
    "service_tier": ("auto", "standard_only"),
    "cache_control": None,
    "speed": ("standard",),
}
"""Values of fields that change nothing here; None: any value."""

REFUSED = {
    "container": "",
    "context_management": "",
    "diagnostics": ": usage says how much of the prompt was cached",
    "inference_geo": "",
    "mcp_servers": "",
}
"""Fields that are not supported, and why."""

NAMES = {
    "max_new_tokens": "max_tokens",
    "stop_words": "stop_sequences",
    "model_name": "model",
    "template_variables": "chat_template_kwargs",
    "tool_format": "tool_parser",
    "response_format": "output_config.format",
    "messages[]": "messages",
}
"""What the API calls fields of the wire contract, where it has another name. The engine's messages are others."""


class Thinking(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Part thoughts from the text. Whether the model thinks, its template decides; a budget does not bind it."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized"] | None = None


class Format(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the answer must look like: JSON that satisfies a schema."""

    schema: dict[str, Any]
    type: Literal["json_schema"]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to answer. `effort` is not supported."""

    format: Format | None = None
    effort: str | None = None

    def response_format(self) -> dict[str, Any] | None:
        """Return the response format; None: free text. Raises Failure: an effort is given."""
        if self.effort is not None:
            what = "is not supported: give a variable of the model's template in chat_template_kwargs"
            raise invalid("output_config.effort", what, "unsupported_parameter")
        return None if self.format is None else {"type": "json_schema", "json_schema": self.format.schema}


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A conversation. `chat_template_kwargs` and `tool_parser` are Headrace's own."""

    model: str
    messages: Annotated[list[Turn], msgspec.Meta(max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    tool_parser: str | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def wanted_tools(self) -> Tools:
        """Return the tools. Raises Failure: a choice that does not fit them."""
        return tools_of(self.tools, self.tool_choice, self.tool_parser)

    def response_format(self) -> dict[str, Any] | None:
        """Return the response format; None: free text. Raises Failure as `OutputConfig.response_format`."""
        return None if self.output_config is None else self.output_config.response_format()

    def names(self) -> dict[str, str]:
        """Return what this request calls fields of the wire contract."""
        return NAMES if self.system is None else NAMES | {"messages[0]": "system"}

    def prompt(self) -> dict[str, Any]:
        """Return the prompt. A last message of the assistant is continued.

        Raises:
            Failure: there are no messages, or a part of one is not supported.
        """
        if not self.messages:
            raise invalid("messages", "is empty")
        found = messages_of(self.messages)
        if self.system is not None:
            found.insert(0, {"role": "system", "content": texts_of(self.system, "system")})
        continued = self.messages[-1].role == "assistant"
        return {
            "messages": found,
            "add_generation_prompt": False if continued else None,
            "continue_final_message": True if continued else None,
            "template_variables": self.chat_template_kwargs,
            **self.wanted_tools().prompt(),
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

    @property
    def thinks(self) -> bool:
        """True if thoughts are parted from the text."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def config(self) -> dict[str, Any]:
        """Return the generation config. `seed` is Headrace's own. Raises Failure as `response_format`."""
        return {
            "response_format": self.response_format(),
            "max_new_tokens": self.max_tokens,
            "stop_words": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
        }
