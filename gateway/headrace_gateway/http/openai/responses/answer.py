"""Responses as they are answered."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from headrace.types import AcceptedRequest, FinishReason

from headrace_gateway.http.generation import Text
from headrace_gateway.http.openai.responses.items import Item

_PREFIX = "resp_"

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]

_CUT = frozenset({FinishReason.MAX_LENGTH, FinishReason.DEADLINE, FinishReason.RESPONSE_FORMAT_LIMIT})


class InputDetails(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Of the answer's tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(msgspec.Struct):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseError(msgspec.Struct):
    """Why a response failed."""

    message: str
    code: str


class Response(msgspec.Struct, kw_only=True):
    """A response."""

    id: str
    created_at: float
    model: str
    status: Status
    output: list[Item] = []
    usage: ResponseUsage | None = None
    incomplete_details: Incomplete | None = None
    error: ResponseError | None = None
    background: bool = False
    store: bool = False
    instructions: str | None = None
    metadata: dict[str, str] = {}
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool = True
    tool_choice: Any = "auto"
    tools: list[Any] = []
    truncation: Literal["disabled"] = "disabled"
    object: Literal["response"] = "response"

    def ended(self, text: Text, output: list[Item], prompt_tokens: int) -> Response:
        """Return it as it is when it has ended."""
        usage = ResponseUsage(
            prompt_tokens, InputDetails(text.cached), text.tokens, OutputDetails(), prompt_tokens + text.tokens
        )
        status = status_of(text)
        return msgspec.structs.replace(
            self,
            status=status,
            output=output,
            usage=usage,
            incomplete_details=Incomplete() if status == "incomplete" else None,
        )

    def failed(self, message: str, code: str) -> Response:
        """Return it as it is when it has failed."""
        return msgspec.structs.replace(self, status="failed", error=ResponseError(message, code))


def status_of(text: Text) -> Status:
    """Return how a response ended whose text has."""
    if text.finish in _CUT:
        return "incomplete"
    return "cancelled" if text.finish is FinishReason.STOPPED else "completed"


def id_of(request_id: str) -> str:
    """Return the id of a response whose request has this id."""
    return _PREFIX + request_id


def request_id_of(response_id: str) -> str:
    """Return the id of the request behind a response."""
    return response_id.removeprefix(_PREFIX)


def response_of(accepted: AcceptedRequest, created: float, **more: Any) -> Response:
    """Return a response whose request was accepted."""
    config = accepted.effective_config
    return Response(
        id=id_of(accepted.request_id),
        created_at=created,
        model=accepted.effective_config.get("lora_name") or accepted.model_name,
        status="in_progress",
        max_output_tokens=config.get("max_new_tokens"),
        temperature=config.get("temperature"),
        top_p=config.get("top_p"),
        **more,
    )
