"""Conversion of prompts, and of requests to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from headrace_proto.v1 import generation_pb2, request_pb2, request_service_pb2
from headrace_proto.v1.engine_service_pb2 import TokenizeRequest
from headrace_proto.v1.request_service_pb2 import EmbedInput, EmbedRequest, GenerateRequest, StartRequestRequest

from headrace_engine.chat_types import Chat, ChatMessage, ToolCall, ToolChoice, ToolChoiceMode
from headrace_engine.engine.config.field_checks import NOT_YET
from headrace_engine.engine.config.fields import GENERATION
from headrace_engine.errors import InvalidArgument
from headrace_engine.generation_config import GenerationConfig
from headrace_engine.request_types import Pooling, ResumedSequence, StartRequest
from headrace_engine.service.convert.callers import caller, owner_limits, trace
from headrace_engine.service.convert.codec import Codec
from headrace_engine.service.convert.config import GENERATION_CONFIG
from headrace_engine.service.convert.refusals import refuse_unknown, required
from headrace_engine.service.convert.results import REQUEST_STAT
from headrace_engine.service.convert.sizes import (
    MAX_SEQUENCES,
    few,
    refuse_large_chat,
    refuse_large_config,
    refuse_more,
)

_CONTENT_EXCLUDES = ("request_id", "handover", "attempt", "resume", "validate_only", "owner")
"""Fields that are ignored when two starts are compared; some are the request's key."""

MAX_INPUTS = 64
"""Maximum number of prompts of one Embed: the vectors of the widest models fit into one message."""

_POOLINGS = {
    request_service_pb2.POOLING_UNSPECIFIED: Pooling.LAST,
    request_service_pb2.POOLING_LAST: Pooling.LAST,
    request_service_pb2.POOLING_MEAN: Pooling.MEAN,
}

_MODES = {
    generation_pb2.TOOL_CHOICE_MODE_UNSPECIFIED: ToolChoiceMode.AUTO,
    generation_pb2.TOOL_CHOICE_MODE_AUTO: ToolChoiceMode.AUTO,
    generation_pb2.TOOL_CHOICE_MODE_NONE: ToolChoiceMode.NONE,
    generation_pb2.TOOL_CHOICE_MODE_REQUIRED: ToolChoiceMode.REQUIRED,
}

_TOOL_CALL = Codec(ToolCall, generation_pb2.ToolCall)


def start_request(message: StartRequestRequest) -> StartRequest:
    """Convert a StartRequest.

    Raises:
        InvalidArgument: something in it is unknown, missing, or not supported.
    """
    refuse_more("resume.sequences", len(message.resume.sequences), MAX_SEQUENCES, "entries")
    return replace(
        generate_request(message),
        request_id=message.request_id,
        handover=message.handover,
        resume=tuple(map(_resumed, message.resume.sequences)) if message.HasField("resume") else None,
        content=_content(message),
    )


def generate_request(message: GenerateRequest | StartRequestRequest) -> StartRequest:
    """Convert a Generate. It has no key, so it is never compared with another start.

    Raises:
        InvalidArgument: something in it is unknown, missing, or not supported.
    """
    _check(message)
    return StartRequest(
        model_name=message.model_name,
        prompt=_prompt(message),
        config=_config(message),
        add_special_tokens=_add_special_tokens(message),
        owner=message.owner,
        caller=caller(),
        limits=owner_limits(),
        trace=trace(),
    )


def embed_requests(message: EmbedRequest) -> list[StartRequest]:
    """Convert an Embed: one request for each input.

    Raises:
        InvalidArgument: something in it is unknown, missing, or too much.
    """
    if not 1 <= len(message.inputs) <= MAX_INPUTS:
        raise InvalidArgument.field("inputs", f"has {len(message.inputs)} entries; allowed: 1 to {MAX_INPUTS}")
    for each in message.inputs:
        refuse_large_chat(each.chat)
    refuse_unknown(message)
    pooling = _POOLINGS.get(message.pooling)
    if pooling is None:
        raise InvalidArgument.field("pooling", f"= {message.pooling} is not known; allowed: LAST, MEAN")
    priority = message.priority if message.HasField("priority") else None
    return [
        StartRequest(
            model_name=message.model_name,
            prompt=_prompt(each),
            config=GenerationConfig(priority=priority, lora_name=message.lora_name or None),
            add_special_tokens=_add_special_tokens(each),
            owner=message.owner,
            caller=caller(),
            limits=owner_limits(),
            trace=trace(),
            pooling=pooling,
        )
        for each in message.inputs
    ]


def tokenize_prompt(message: TokenizeRequest) -> tuple[str | Chat, bool | None]:
    """Return the prompt of a Tokenize, and whether special tokens are requested.

    Raises:
        InvalidArgument: no prompt is set, or it is not supported.
    """
    kind = required(message, "prompt")
    refuse_large_chat(message.chat)
    return (message.text if kind == "text" else _chat(message.chat)), _add_special_tokens(message)


def _check(message: StartRequestRequest | GenerateRequest) -> None:
    """Refuse large messages first, as all later work takes time in proportion to the size."""
    refuse_large_chat(message.chat)
    refuse_large_config(message.config, GENERATION)
    refuse_unknown(message)


def _resumed(message: request_pb2.ResumedSequence) -> ResumedSequence:
    stat = REQUEST_STAT.to_domain(message.stat) if message.HasField("stat") else None
    return ResumedSequence(message.index, few(message.delivered_ids), stat, message.ended)


def _config(message: StartRequestRequest | GenerateRequest) -> GenerationConfig:
    return GENERATION_CONFIG.to_domain(message.config)


def _add_special_tokens(message: StartRequestRequest | GenerateRequest | EmbedInput | TokenizeRequest) -> bool | None:
    return message.add_special_tokens if message.HasField("add_special_tokens") else None


def _content(message: StartRequestRequest) -> bytes:
    """Return a digest that is equal for equal starts."""
    digest = sha256()
    for field, value in message.ListFields():
        if field.name not in _CONTENT_EXCLUDES:
            part = str(value).encode() if field.message_type is None else value.SerializeToString(deterministic=True)
            digest.update(b"%d:%d:" % (field.number, len(part)))
            digest.update(part)
    return digest.digest()


def _prompt(message: StartRequestRequest | GenerateRequest | EmbedInput) -> str | Sequence[int] | Chat:
    kind = required(message, "prompt")
    if kind == "text":
        return message.text
    return few(message.token_ids.ids) if kind == "token_ids" else _chat(message.chat)


def _chat(chat: generation_pb2.Chat) -> Chat:
    return Chat(
        messages=tuple(_chat_message(each, f"chat.messages[{index}]") for index, each in enumerate(chat.messages)),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None,
        continue_final_message=chat.continue_final_message if chat.HasField("continue_final_message") else None,
        template_variables=dict(chat.template_variables),
        tools=tuple(chat.tools),
        tool_choice=_tool_choice(chat.tool_choice) if chat.HasField("tool_choice") else None,
        tool_format=chat.tool_format,
        keep_marks=chat.keep_marks if chat.HasField("keep_marks") else None,
    )


def _tool_choice(choice: generation_pb2.ToolChoice) -> ToolChoice:
    mode = _MODES.get(choice.mode)
    if mode is None:
        raise InvalidArgument.field(
            "chat.tool_choice.mode", f"= {choice.mode} is not known; allowed: {', '.join(ToolChoiceMode)}"
        )
    parallel = not choice.HasField("parallel") or choice.parallel
    return ToolChoice(mode, tuple(choice.names), parallel, tuple(choice.strict))


def _chat_message(message: generation_pb2.ChatMessage, path: str) -> ChatMessage:
    return ChatMessage(
        role=message.role,
        content=_chat_content(message, path),
        name=message.name if message.HasField("name") else None,
        tool_calls=tuple(map(_TOOL_CALL.to_domain, message.tool_calls)),
        tool_call_id=message.tool_call_id if message.HasField("tool_call_id") else None,
        extra_json=message.extra_json,
    )


def _chat_content(message: generation_pb2.ChatMessage, path: str) -> str | tuple[str, ...] | None:
    if not message.parts:
        return message.content if message.HasField("content") else None
    if message.HasField("content"):
        raise InvalidArgument.field(f"{path}.parts", "excludes content; give one of them")
    return tuple(_text_part(part, f"{path}.parts[{index}]") for index, part in enumerate(message.parts))


def _text_part(part: generation_pb2.ContentPart, path: str) -> str:
    if required(part, "part", path) == "media":
        raise InvalidArgument.unsupported(f"{path}.media", NOT_YET)
    return part.text
