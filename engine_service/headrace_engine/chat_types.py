"""Conversations as plain data: their messages and tools, and what is known of the answer before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace_engine.request_parts import ResponseFormat


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as an assistant message made it; arguments as one JSON object."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. Content is a text, or a tuple of texts if it was sent in parts."""

    role: str
    content: str | tuple[str, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    extra_json: str = ""


class ToolChoiceMode(StrEnum):
    """Whether the model calls tools."""

    AUTO = "AUTO"
    NONE = "NONE"
    REQUIRED = "REQUIRED"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What calls of tools may be.

    Attributes:
        names: the only functions that may be called; empty: all.
        parallel: an answer may have several calls.
        strict: functions whose arguments satisfy the schema of their parameters.
    """

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    names: tuple[str, ...] = ()
    parallel: bool = True
    strict: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        """True if nothing is enforced."""
        return self.mode is not ToolChoiceMode.REQUIRED and self.parallel and not self.names and not self.strict


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How an answer's text is parted.

    Attributes:
        calls: format of calls; "": none is known, or there are no tools.
        thoughts: format of thoughts.
        thought_open: the prompt ends with the mark of a thought, and the text may go on with it.
        or_json: it is calls alone, or else JSON alone.
    """

    calls: str
    thoughts: str
    thought_open: bool
    or_json: bool = False


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be rendered by the model's chat template. Variables and tools are JSON texts.

    Attributes:
        tool_choice: which tools are called; None: the model chooses.
        tool_format: format of calls; "": as the template shows.
        keep_marks: keep the marks of calls and thoughts in the text; None: with tool_choice.
    """

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    template_variables: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    tool_format: str = ""
    keep_marks: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What is known of the answer to a chat before it begins.

    Attributes:
        format: how it is parted; None: its text lacks the marks for that.
        wanted: what it is held to; None: nothing.
        kept: special ids that stay in its text.
        may_call: it may call tools, and is parted for that.
    """

    format: AnswerFormat | None = None
    wanted: ResponseFormat | None = None
    kept: frozenset[int] = frozenset()
    may_call: bool = False


NOTHING_KNOWN = ChatAnswer()
"""Of the answer to a prompt that is no chat."""
