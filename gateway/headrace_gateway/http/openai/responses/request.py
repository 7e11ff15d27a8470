"""Bodies of responses to create, and what they become."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from headrace_gateway.http.answers.tools import Tools
from headrace_gateway.http.bodies import MAX_MESSAGES
from headrace_gateway.http.failures import invalid
from headrace_gateway.http.openai import fields
from headrace_gateway.http.openai.responses.input import InputItem, messages_of
from headrace_gateway.http.openai.responses.tools import Choice, FunctionTool, tools_of

HARMLESS: dict[str, Any] = {name: None for name in fields.HARMLESS if name not in ("store", "metadata")} | {
    "service_tier": ("auto", "default"),
    "include": ([],),
    "truncation": ("disabled",),
}
"""Values of fields that change nothing here; None: any value."""

REFUSED = {
    "access_programs": "",
    "background_options": ": what runs in the background begins as soon as there is room",
    "image": "",
    "max_tool_calls": ": all calls are the caller's own",
    "conversation": ": continue a stored response with previous_response_id",
    "context_management": "",
    "include": "",
    "moderation": "",
    "personality": ": give instructions",
    "prompt": "",
    "reasoning": ": give a variable of the model's template in chat_template_kwargs",
    "top_logprobs": "",
    "truncation": "",
}
"""Fields that are not supported, and why."""

NAMES = fields.NAMES | {
    "max_new_tokens": "max_output_tokens",
    "response_format": "text.format",
    "messages": "input",
    "messages[]": "input",
}
"""What the API calls fields of the wire contract, where it has another name. The engine's messages are others."""


class Format(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None

    def config(self) -> dict[str, Any] | None:
        """Return it as the generation config has it; None: free text. Raises Failure: parts do not fit its type."""
        if self.schema is None and self.type == "json_schema":
            raise invalid("text.format.schema", "is missing")
        for name in ("name", "schema", "description", "strict"):
            if self.type != "json_schema" and getattr(self, name) is not None:
                raise invalid(f"text.format.{name}", f'is set beside type "{self.type}"; allowed: beside "json_schema"')
        if self.schema is not None:
            return {"type": "json_schema", "json_schema": self.schema}
        return None if self.type == "text" else {"type": self.type}


class TextConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to write the answer."""

    format: Format | None = None
    verbosity: None = None


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The input of a response. `chat_template_kwargs` and `tool_parser` are Headrace's own."""

    model: str
    input: str | Annotated[list[InputItem], msgspec.Meta(max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    text: TextConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    tool_parser: str | None = None

    def wanted_tools(self) -> Tools:
        """Return the tools. Raises Failure: a choice that does not fit them."""
        return tools_of(self.tools, self.tool_choice, self.parallel_tool_calls, self.tool_parser)

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the input. Raises Failure: an item lacks a part, or has one that is no text."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return messages_of(self.input)

    def names(self) -> dict[str, str]:
        """Return what this request calls fields of the wire contract."""
        return NAMES if self.instructions is None else NAMES | {"messages[0]": "instructions"}

    def prompt(self, before: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the prompt: instructions, the conversation before, and the input."""
        first = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return {
            "messages": [*first, *before, *self.messages()],
            "template_variables": self.chat_template_kwargs,
            **self.wanted_tools().prompt(),
        }


class ResponseRequest(CountRequest, forbid_unknown_fields=True, kw_only=True):
    """A response to create. Those from `seed` to `ignore_eos` are Headrace's own."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, str] | None = None
    stream: bool = False
    stream_options: dict[Literal["include_obfuscation"], Literal[False]] | None = None
    background: bool = False
    store: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    prompt_cache_options: fields.CacheOptions | None = None

    @property
    def stored(self) -> bool:
        """True if the response is kept for later."""
        return self.background or bool(self.store)

    def config(self) -> dict[str, Any]:
        """Return the generation config. Raises Failure: fields do not fit each other."""
        if self.background and self.store is False:
            raise invalid("store", "is false with background: what runs in the background is stored")
        form = None if self.text is None or self.text.format is None else self.text.format.config()
        return {
            "max_new_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "ignore_eos": self.ignore_eos,
            "response_format": form,
        }
