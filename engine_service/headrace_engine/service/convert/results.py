"""Conversion of models, requests, results and statistics. Names in capitals are codecs, for both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_proto.v1 import generation_pb2, model_pb2, model_service_pb2, request_pb2, runtime_pb2, stat_pb2
from headrace_proto.v1.engine_service_pb2 import SERVER_ROLE_ENGINE, GetServerInfoResponse
from headrace_proto.v1.request_service_pb2 import GeneratedElementsRequest, GeneratedElementsResponse, GenerateResponse
from headrace_proto.v1.session_pb2 import RowDetails

from headrace_engine import chat_types, model_types, request_types, result_types, token_types
from headrace_engine.service.convert.codec import Codec, Pair, enum_pair
from headrace_engine.service.convert.config import GENERATION_CONFIG, RUNTIME_CONFIG
from headrace_engine.service.convert.status import fill_status, to_error
from headrace_engine.stat_types import EngineStat

_ERROR = Pair(to_error, fill_status)

WARNING = Codec(request_types.ConfigWarning, generation_pb2.Warning)
PROGRESS = Codec(model_types.ModelProgress, model_pb2.ModelProgress)
EFFECTIVE_CONFIG = Codec(
    model_types.EffectiveConfig, runtime_pb2.EffectiveConfig, RUNTIME_CONFIG, GENERATION_CONFIG, WARNING
)
MODEL = Codec(model_types.ModelView, model_pb2.ModelInfo, PROGRESS, EFFECTIVE_CONFIG, failure=_ERROR)
ADAPTER = Codec(model_types.AdapterView, model_pb2.AdapterInfo)
SERIALIZED = Codec(model_types.SerializedModel, model_service_pb2.SerializedModel)
DESCRIPTION = Codec(model_types.ModelDescription, model_pb2.ModelDescription, GENERATION_CONFIG, refusal=_ERROR)

STOP_MATCH = Codec(result_types.StopMatch, request_pb2.StopMatch)
PREFIX_REUSE = Codec(result_types.PrefixReuse, request_pb2.PrefixReuse)
REQUEST_STAT = Codec(result_types.RequestStat, stat_pb2.RequestStatInfo)
END_RECORD = Codec(result_types.EndRecord, request_pb2.EndRecord, STOP_MATCH, REQUEST_STAT, error=_ERROR)
SEQUENCE = Codec(result_types.SequenceView, request_pb2.SequenceInfo, END_RECORD, REQUEST_STAT, PREFIX_REUSE)
ANSWER_FORMAT = Codec(chat_types.AnswerFormat, request_pb2.AnswerFormat)
ACCEPTED = Codec(request_types.AcceptedRequest, request_pb2.AcceptedRequest, GENERATION_CONFIG, WARNING, ANSWER_FORMAT)
REQUEST = Codec(request_types.RequestView, request_pb2.RequestState, ACCEPTED, SEQUENCE)
ENGINE_STAT = Codec(EngineStat, stat_pb2.EngineStat, flat=("pool", "counters", "rates"))
SERVER_INFO = Codec(model_types.ServerInfo, GetServerInfoResponse)
GENERATE_STATUS = enum_pair(request_pb2.DESCRIPTOR.enum_types_by_name["GenerateStatus"], result_types.GenerateStatus)
_VECTORS = ("inputs_embedding", "hidden_states")
"""Names of a token's tensors."""
_ELEMENTS = Codec(result_types.Elements, request_pb2.GeneratedElements, PREFIX_REUSE)


def elements_to_wire(elements: result_types.Elements) -> request_pb2.GeneratedElements:
    """Convert consecutive tokens to a message."""
    message = _ELEMENTS.to_wire(elements)
    if elements.details is not None:
        fill_details(message, elements.details)
    return message


def fill_details(message: request_pb2.GeneratedElements | RowDetails, details: token_types.TokenDetails) -> None:
    """Write the details of consecutive tokens: logprobs and tensors."""
    if details.token_logprobs is not None:
        _fill_logprobs(message.logprobs, details.token_logprobs, details.top_logprobs)
    if details.tensors is not None:
        for name in _VECTORS:
            _fill_tensor(message.tensors.add(name=name), details.tensors.size, getattr(details.tensors, name))


def _fill_tensor(message: request_pb2.NamedTensor, size: int, data: bytes) -> None:
    message.tensor.dtype = generation_pb2.TENSOR_DTYPE_FLOAT32
    message.tensor.shape.extend((len(data) // (4 * size), size))
    message.tensor.data = data


def prompt_to_wire(piece: token_types.PromptLogprobs | None) -> request_pb2.PromptLogprobs | None:
    """Convert the prompt logprobs of a part of a prompt, if there are any."""
    if piece is None:
        return None
    message = request_pb2.PromptLogprobs(position=piece.position, token_ids=piece.token_ids)
    _fill_logprobs(message.logprobs, piece.token_logprobs, piece.top_logprobs)
    return message


def _fill_logprobs(
    message: request_pb2.Logprobs, token_logprobs: Iterable[float], tops: token_types.TopLogprobs | None
) -> None:
    """Write the logprobs of consecutive tokens."""
    message.SetInParent()
    message.token_logprobs.extend(token_logprobs)
    if tops is not None:
        message.top_count = tops.count
        message.top_ids.extend(tops.ids)
        message.top_logprobs.extend(tops.logprobs)


def elements_response(request: GeneratedElementsRequest, result: result_types.ReadResult) -> GeneratedElementsResponse:
    """Convert a result to a message of GeneratedElements."""
    return GeneratedElementsResponse(handle=request.handle, index=request.index, **_found(result))


def generate_response(
    accepted: request_types.AcceptedRequest | None, index: int, result: result_types.ReadResult | None
) -> GenerateResponse:
    """Convert an accepted request, or a result of a sequence, to a message of Generate."""
    request = None if accepted is None else ACCEPTED.to_wire(accepted)
    result = result or result_types.ReadResult(result_types.GenerateStatus.INIT)
    prompt = prompt_to_wire(result.prompt)
    return GenerateResponse(index=index, request=request, prompt_logprobs=prompt, **_found(result))


def _found(result: result_types.ReadResult) -> dict[str, Any]:
    return {
        "status": GENERATE_STATUS.write(result.status),
        "elements": None if result.elements is None else elements_to_wire(result.elements),
        "end": None if result.end is None else END_RECORD.to_wire(result.end),
    }


def request_states(views: Iterable[request_types.RequestView]) -> list[request_pb2.RequestState]:
    """Convert requests for a list, without their effective configs."""
    states = [REQUEST.to_wire(view) for view in views]
    for state in states:
        state.request.ClearField("effective_config")
    return states


def engine_stats(stats: Iterable[EngineStat], server: model_types.ServerInfo) -> list[stat_pb2.EngineStat]:
    """Convert statistics, with the versions of their server."""
    messages = [ENGINE_STAT.to_wire(stat) for stat in stats]
    for message in messages:
        message.api_version, message.build = server.api_version, server.build
    return messages


def server_info_response(server: model_types.ServerInfo) -> GetServerInfoResponse:
    """Convert the facts of a server."""
    message = SERVER_INFO.to_wire(server)
    message.role = SERVER_ROLE_ENGINE
    return message
