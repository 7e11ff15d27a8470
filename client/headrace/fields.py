"""The keywords of requests and installs, typed. The names are those of the wire's messages; `fill` sets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from headrace._values.field_values import Lease, LogitsProcessor, Seconds, TokenIdLists
from headrace._values.generation_fields import GenerationFields
from headrace._values.install_fields import InstallFields

__all__ = [
    "ChatFields", "GenerationFields", "InstallFields", "Lease", "LogitsProcessor", "Seconds", "StartFields",
    "TokenIdLists",
]  # fmt: skip


class ChatFields(TypedDict, total=False):
    """How a prompt becomes ids.

    Attributes:
        add_special_tokens: text only: add what the tokenizer puts at begin and end. Default: the tokenizer's own.
        add_generation_prompt: messages only: open the assistant's answer. Default True.
        continue_final_message: messages only: leave the last message open. Default False.
        template_variables: messages only: variables of the chat template, any values that JSON can hold.
        tools: messages only: tools for the template, each a dict or JSON text.
        tool_choice: messages only: which tools the model calls: "auto", "none", "required", or a mapping with mode,
            names (the only ones that may be called), parallel (several calls in one answer, default True) and strict
            (names of functions whose arguments satisfy their parameters). Needs tools; enforced by guided decoding.
        tool_format: messages only: how the model writes calls (docs/tools.md). Default: as its template shows.
        keep_marks: messages only: keep the marks of calls and thoughts in the text, for `headrace.answers`. Default:
            True with tool_choice.
    """

    add_special_tokens: bool | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    template_variables: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any] | str] | None
    tool_choice: str | Mapping[str, Any] | None
    tool_format: str | None
    keep_marks: bool | None


class StartFields(GenerationFields, ChatFields, total=False):
    """All further keywords of `start_request` and `generate`. With `n` above 1, the others are `queue.choices`."""
