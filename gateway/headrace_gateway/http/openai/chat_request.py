"""Bodies of chats to answer, and what they become."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.bodies import MAX_MESSAGES
from headrace_gateway.http.failures import invalid
from headrace_gateway.http.openai import fields, formats
from headrace_gateway.http.openai.messages import Message, messages_of
from headrace_gateway.http.openai.tools import Choice as ToolChoice
from headrace_gateway.http.openai.tools import Tool, tools_of

HARMLESS = fields.HARMLESS | formats.HARMLESS | {"modalities": (["text"],)}
"""Values of fields that change nothing here; None: any value."""

REFUSED = formats.REFUSED | {
    "functions": ": give tools",
    "function_call": ": give tool_choice",
    "audio": "",
    "modalities": "",
    "moderation": "",
    "prediction": "",
    "web_search_options": "",
    "reasoning_effort": ": give a variable of the model's template in chat_template_kwargs",
    "verbosity": "",
}
"""Fields that are not supported, and what to give instead."""


class ChatRequest(fields.Sampling, forbid_unknown_fields=True, kw_only=True):
    """A chat to answer."""

    messages: Annotated[list[Message], msgspec.Meta(max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    tool_parser: str | None = None
    separate_reasoning: bool = False
    prompt_cache_options: fields.CacheOptions | None = None

    def wanted_tools(self) -> Tools:
        """Return the tools. Raises Failure: a choice without them."""
        return tools_of(self.tools, self.tool_choice, self.parallel_tool_calls, self.tool_parser)

    def prompt(self) -> dict[str, Any]:
        """Return the prompt, and how to render it."""
        return {
            "messages": messages_of(self.messages),
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "template_variables": self.chat_template_kwargs,
            **self.wanted_tools().prompt(),
        }

    def config(self) -> dict[str, Any]:
        """Return the generation config. Raises Failure."""
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise invalid("max_tokens", "is set beside max_completion_tokens: give one of them")
        found = super().config()
        if self.max_completion_tokens is not None:
            found["max_new_tokens"] = self.max_completion_tokens
        return found | {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs}

    def names(self) -> dict[str, str]:
        """Return what this request calls fields of the wire contract. Raises Failure as `config`."""
        found = super().names()
        return found if self.max_completion_tokens is None else found | {"max_new_tokens": "max_completion_tokens"}
