"""Refusal of messages by size alone, before anything iterates over them; large ones are converted in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message
from headrace_proto.v1 import generation_pb2
from headrace_proto.v1.request_service_pb2 import EmbedRequest

from headrace_engine.engine.config.field_checks import Field, refuse
from headrace_engine.engine.work.pools import WorkPools
from headrace_engine.errors import FieldViolation, InvalidArgument
from headrace_engine.service.convert.callers import caller

M = TypeVar("M", bound=Message)
T = TypeVar("T")

INLINE_BYTES = 4096
"""Larger prompts are converted in a worker thread. Up to this size it takes 1 ms, 20 ms at worst."""

MAX_CONFIG_BYTES = 1 << 20
"""Maximum bytes of a config, without its media."""

MAX_CHAT_PARTS = 16_384
"""Maximum messages, content parts, tool calls, tools and template variables of a chat, in total."""

MAX_SEQUENCES = 64
"""Maximum sequences of a hand-over: the most that a request can have."""

MAX_IDS = 1 << 20
"""Maximum ids of one Detokenize."""


async def by_size(pools: WorkPools, convert: Callable[[M], T], message: M) -> T:
    """Convert a message with a prompt: here if it is small, else in a worker thread, so as not to block other calls."""
    party, size = getattr(message, "owner", "") or caller(), max(_ids(message), message.ByteSize())
    return await pools.on_text(party, size, convert, message, inline=INLINE_BYTES)


def refuse_large_config(config: Any, fields: Mapping[str, Field]) -> None:
    """Refuse a config with too many entries in a list, or too large as a whole.

    Args:
        fields: field table of the config.

    Raises:
        InvalidArgument: names every such list.
    """
    counts = {field: _count(getattr(config, field.name)) for field in fields.values() if field.most is not None}
    wrong = [(field.name, field.too_many(count)) for field, count in counts.items()]
    refuse(FieldViolation(f"config.{name}", text) for name, text in wrong if text)
    media = config.mm_info.ByteSize() if "mm_info" in fields and config.HasField("mm_info") else 0
    refuse_more("config", config.ByteSize() - media, MAX_CONFIG_BYTES, "bytes")


def refuse_large_chat(chat: generation_pb2.Chat) -> None:
    """Refuse a chat with too many parts.

    Raises:
        InvalidArgument: names their number.
    """
    refuse_more("chat.messages", len(chat.messages), MAX_CHAT_PARTS, "messages")
    parts = len(chat.messages) + len(chat.tools) + len(chat.template_variables)
    parts += len(chat.tool_choice.names) + len(chat.tool_choice.strict)
    parts += sum(len(message.parts) + len(message.tool_calls) for message in chat.messages)
    refuse_more("chat", parts, MAX_CHAT_PARTS, "messages, parts, tool calls, tools, names of them and variables")


def refuse_more(field: str, size: int, limit: int, unit: str) -> None:
    """Refuse a field of more than `limit` units.

    Raises:
        InvalidArgument: names the field, its size, and the limit.
    """
    if size > limit:
        raise InvalidArgument.field(field, f"has {size} {unit}; allowed: at most {limit}")


def few(ids: Sequence[int]) -> Sequence[int]:
    """Convert ids of a message to a tuple, unless they are many: a later check may refuse their number."""
    return tuple(ids) if len(ids) <= INLINE_BYTES else ids


def _ids(message: Any) -> int:
    if isinstance(message, EmbedRequest):
        return sum(map(_ids, message.inputs))
    return len(message.token_ids.ids) if message.WhichOneof("prompt") == "token_ids" else 0


def _count(value: Any) -> int:
    return len(value.items) if isinstance(value, generation_pb2.MmInfo) else len(value)
