"""Converting messages about requests into the public types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from headrace_proto.v1 import generation_pb2, request_pb2, request_service_pb2, stat_pb2

from headrace import types
from headrace._types.tensor import Tensor
from headrace._values.details import Details, details_of
from headrace._values.scalars import enum_name
from headrace._values.unfill import to_datetime, to_fields
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError

_STATUS = {
    request_pb2.GENERATE_STATUS_INIT: types.GenerateStatus.Init,
    request_pb2.GENERATE_STATUS_CONTEXT_FINISHED: types.GenerateStatus.ContextFinished,
    request_pb2.GENERATE_STATUS_GENERATING: types.GenerateStatus.Generating,
    request_pb2.GENERATE_STATUS_FINISHED: types.GenerateStatus.GenerateFinished,
    request_pb2.GENERATE_STATUS_INTERRUPTED: types.GenerateStatus.GenerateInterrupted,
    request_pb2.GENERATE_STATUS_INTERNAL_ERROR: types.GenerateStatus.InternalError,
}

_NO_REUSE = (0, 0, 0)


def status_of(number: int) -> types.GenerateStatus:
    """Return the public name of a status; Generating for one that is newer than this version."""
    return _STATUS.get(cast(Any, number), types.GenerateStatus.Generating)


def finish_reason_of(number: int) -> types.FinishReason:
    """Return the public name of a finish reason; UNKNOWN for one that is newer than this version."""
    name = enum_name(request_pb2.FinishReason.DESCRIPTOR, number)
    return types.FinishReason.__members__.get(name, types.FinishReason.UNKNOWN)


def stop_match_of(end: request_pb2.EndRecord) -> types.StopMatch | None:
    """Return the stop that ended a sequence; None if none did."""
    if not end.HasField("stop"):
        return None
    return types.StopMatch(enum_name(request_pb2.StopKind.DESCRIPTOR, end.stop.kind), end.stop.index, end.stop.text)


def error_of(end: request_pb2.EndRecord, request_id: str = "") -> HeadraceError | None:
    """Return the error of a sequence; None if it has none."""
    return error_from_status(end.error, request_id=request_id) if end.HasField("error") else None


def embeddings_of(answer: request_service_pb2.EmbedResponse) -> list[types.Embedding]:
    """Return the embeddings in an answer."""
    return [types.Embedding(list(each.values), each.prompt_token_count) for each in answer.embeddings]


def top_logprobs(logprobs: request_pb2.Logprobs) -> list[list[tuple[int, float]]]:
    """Return [token][top] (id, logprob) from the wire's flat lists."""
    top = logprobs.top_count
    pairs = list(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True))
    return [pairs[i * top : (i + 1) * top] for i in range(len(logprobs.token_logprobs))]


def elements_of(
    ids: list[int], text: str, position: int, details: Sequence[Details] = (), prefix: Any = None
) -> types.GeneratedElements:
    """Return consecutive tokens of a sequence as one element.

    Args:
        ids: their ids, which the element keeps.
        text: their text.
        position: position of the first token.
        details: their details, in order; empty: there are none.
        prefix: prefix-cache use of the prompt (PrefixReuse); None: unknown, returned as 0.
    """
    reuse = _NO_REUSE if prefix is None else (prefix.prefix_cache_len, prefix.prefix_len_gpu, prefix.prefix_len_cpu)
    # To pass lists is quicker than to have them made.
    elements = types.GeneratedElements(ids, text, [], [], [], reuse[0], reuse[1], reuse[2], position)
    if not details:
        return elements
    return replace(
        elements,
        token_logprobs_list=[value for one in details for value in one.logprobs.token_logprobs],
        log_probs_list=[row for one in details for row in top_logprobs(one.logprobs)],
        tensors_from_model_inference=[row for one in details for row in _tensor_rows(one.tensors)],
    )


def _tensor_rows(tensors: Iterable[request_pb2.NamedTensor]) -> list[dict[str, Tensor]]:
    columns = {named.name: tensor_of(named.tensor).rows() for named in tensors}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def tensor_of(tensor: generation_pb2.Tensor) -> Tensor:
    """Return a tensor from the wire's form."""
    kind = enum_name(generation_pb2.TensorDtype.DESCRIPTOR, tensor.dtype)
    return Tensor(kind, tuple(tensor.shape), tensor.data)


def stat_of(stat: stat_pb2.RequestStatInfo) -> types.RequestStat:
    """Return statistics by name, in milliseconds; a value is None until it is known."""
    return cast(types.RequestStat, {field.name: optional(stat, field.name) for field in stat.DESCRIPTOR.fields})


def optional(message: Message, name: str) -> Any:
    """Return the value of a field, None if it is unset; times and durations in milliseconds."""
    if not message.HasField(name):
        return None
    value = getattr(message, name)
    if isinstance(value, Timestamp | Duration):
        return value.seconds * 1000 + value.nanos / 1e6
    return value


def time_of(message: Message, name: str) -> datetime | None:
    """Return a field's time in UTC; None if it is unset."""
    return to_datetime(getattr(message, name)) if message.HasField(name) else None


def accepted_of(request: request_pb2.AcceptedRequest) -> types.AcceptedRequest:
    """Return an accepted request."""
    return types.AcceptedRequest(
        handle=request.handle,
        request_id=request.request_id,
        model_name=request.model_name,
        effective_config=to_fields(request.effective_config),
        seed=request.seed,
        prompt_token_count=request.prompt_token_count,
        prompt_hash=request.prompt_hash,
        warnings=tuple(types.ConfigWarning(one.field, one.message) for one in request.warnings),
        waiting_ahead=request.waiting_ahead,
        handover=request.handover,
        joined=request.joined,
        adapter_digest=request.adapter_digest,
        answer_format=_answer_format(request),
    )


def _answer_format(request: request_pb2.AcceptedRequest) -> types.AnswerFormat | None:
    if not request.HasField("answer_format"):
        return None
    form = request.answer_format
    return types.AnswerFormat(form.calls, form.thoughts, form.thought_open, form.or_json)


def sequence_of(info: request_pb2.SequenceInfo, request_id: str = "") -> types.SequenceInfo:
    """Return the state of a sequence."""
    ended = info.HasField("end")
    return types.SequenceInfo(
        index=info.index,
        status=status_of(info.status),
        generated_length=info.generated_length,
        first_position=info.first_position,
        finish_reason=finish_reason_of(info.end.finish_reason) if ended else None,
        stop_match=stop_match_of(info.end),
        error=error_of(info.end, request_id),
        stat=stat_of(info.end.stat if info.end.HasField("stat") else info.stat),
    )


def request_of(state: request_pb2.RequestState) -> types.RequestInfo:
    """Return the state of a request."""
    return types.RequestInfo(
        request=accepted_of(state.request),
        sequences=tuple(sequence_of(one, state.request.request_id) for one in state.sequences),
        attached=state.attached,
        lease_expires=time_of(state, "lease_expires"),
    )


def get_request_answer(answer: request_service_pb2.GetRequestResponse) -> types.RequestInfo:
    """Return the state of a request, with the requested tokens and prompt logprobs."""
    info = request_of(answer.request)
    elements = prompt = None
    if answer.HasField("elements"):
        found = answer.elements
        details = [rich] if (rich := details_of(found)) is not None else []
        elements = elements_of(list(found.token_ids), found.text, found.position, details, found.prefix)
    if answer.HasField("prompt_logprobs"):
        piece = answer.prompt_logprobs
        values = list(piece.logprobs.token_logprobs)
        ids = list(piece.token_ids)
        prompt = types.PromptLogprobs(piece.position, ids, values, top_logprobs(piece.logprobs))
    return types.RequestInfo(
        info.request, info.sequences, info.attached, info.lease_expires, elements=elements, prompt_logprobs=prompt
    )
