"""Answers of Anthropic's API, as a whole and as events."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thinks. It is not signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool.

    Attributes:
        input: its arguments as the model wrote them: their numbers may be larger than parsers take.
    """

    id: str
    name: str
    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class Usage(msgspec.Struct):
    """Tokens of a request; those of the prompt without those that came from the prefix cache."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct):
    """The next message of a conversation."""

    id: str
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(msgspec.Struct):
    """The first event."""

    message: Message
    type: Literal["message_start"] = "message_start"


class BlockStart(msgspec.Struct):
    """A block begins."""

    content_block: ContentBlock
    index: int
    type: Literal["content_block_start"] = "content_block_start"


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """New text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """What is new of a thought."""

    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """What is new of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct):
    """A block goes on."""

    delta: TextDelta | ThinkingDelta | InputDelta
    index: int
    type: Literal["content_block_delta"] = "content_block_delta"


class BlockStop(msgspec.Struct):
    """A block has ended."""

    index: int
    type: Literal["content_block_stop"] = "content_block_stop"


class End(msgspec.Struct):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct):
    """How the message ended."""

    delta: End
    usage: Usage
    type: Literal["message_delta"] = "message_delta"


class MessageStop(msgspec.Struct):
    """The last event."""

    type: Literal["message_stop"] = "message_stop"


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
