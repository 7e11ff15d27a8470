"""Messages as engines send them, with correct checksums."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

from headrace_proto.v1 import request_pb2, request_service_pb2, stat_pb2, status_pb2

FINISHED = request_pb2.GENERATE_STATUS_FINISHED
GENERATING = request_pb2.GENERATE_STATUS_GENERATING
HANDLE = "e1/i1/0123456789abcdef0123456789abcdef"


def crc(ids: Sequence[int]) -> int:
    """Return the contract's CRC-32, computed in another way than in the client."""
    value = 0
    for token in ids:
        value = zlib.crc32(struct.pack("<I", token), value)
    return value


def text_of(ids: Sequence[int]) -> str:
    """Return the text of ids in these samples."""
    return "".join(f"<{token}>" for token in ids)


def part(ids: Sequence[int], begin: int, end: int, **fields: Any) -> request_pb2.GeneratedElements:
    """Return the tokens of a sequence from one position to another."""
    given = {"text": text_of(ids[begin:end]), **fields}
    return request_pb2.GeneratedElements(
        position=begin,
        token_ids=ids[begin:end],
        checksum_before=crc(ids[:begin]),
        checksum_after=crc(ids[:end]),
        **given,
    )


def end_record(ids: Sequence[int], text: str = "", **fields: Any) -> request_pb2.EndRecord:
    """Return the end of a sequence."""
    given = {"status": FINISHED, "finish_reason": request_pb2.FINISH_REASON_EOS, **fields}
    stat = stat_pb2.RequestStatInfo(generated_token_length=len(ids), generate_tps=50.0)
    return request_pb2.EndRecord(position=len(ids), text=text, checksum=crc(ids), stat=stat, **given)


def failed_end(ids: Sequence[int], reason: str = "ENGINE_FAULT") -> request_pb2.EndRecord:
    """Return the end of a sequence that failed at the engine."""
    error = status_pb2.Status(code=13, message="the logits are NaN.")
    detail = error.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo")
    detail.value = status_pb2.ErrorInfo(reason=reason, domain="headrace").SerializeToString()
    return end_record(
        ids,
        status=request_pb2.GENERATE_STATUS_INTERNAL_ERROR,
        finish_reason=request_pb2.FINISH_REASON_ERROR,
        error=error,
    )


def tokens(
    ids: Sequence[int], begin: int = 0, end: int | None = None, **fields: Any
) -> request_service_pb2.GeneratedElementsResponse:
    """Return a message of the stream with tokens."""
    elements = part(ids, begin, len(ids) if end is None else end, **fields)
    return request_service_pb2.GeneratedElementsResponse(handle=HANDLE, status=GENERATING, elements=elements)


def ended(
    ids: Sequence[int], text: str = "", record: request_pb2.EndRecord | None = None
) -> request_service_pb2.GeneratedElementsResponse:
    """Return the last message of the stream."""
    end = record or end_record(ids, text)
    return request_service_pb2.GeneratedElementsResponse(handle=HANDLE, status=end.status, end=end)


def status_only(status: int) -> request_service_pb2.GeneratedElementsResponse:
    """Return a message of the stream with only a status."""
    return request_service_pb2.GeneratedElementsResponse(handle=HANDLE, status=status)  # type: ignore[arg-type]


def accepted(handle: str = HANDLE, **fields: Any) -> request_service_pb2.StartRequestResponse:
    """Return the response of a start."""
    given = {"model_name": "smol", "request_id": "r1", "seed": 7, "prompt_token_count": 3, **fields}
    return request_service_pb2.StartRequestResponse(request=request_pb2.AcceptedRequest(handle=handle, **given))


def state(handle: str = HANDLE, *sequences: request_pb2.SequenceInfo, **fields: Any) -> request_pb2.RequestState:
    """Return the state of a request."""
    return request_pb2.RequestState(request=accepted(handle, **fields).request, sequences=sequences)


def running_info(length: int = 0, index: int = 0, status: int = GENERATING) -> request_pb2.SequenceInfo:
    """Return the state of a running sequence."""
    return request_pb2.SequenceInfo(index=index, status=status, generated_length=length)  # type: ignore[arg-type]


def ended_info(ids: Sequence[int], index: int = 0, text: str = "") -> request_pb2.SequenceInfo:
    """Return the state of an ended sequence."""
    end = end_record(ids, text)
    return request_pb2.SequenceInfo(
        index=index, status=end.status, generated_length=len(ids), checksum=end.checksum, end=end, stat=end.stat
    )


def got(*sequences: request_pb2.SequenceInfo, handle: str = HANDLE, **fields: Any) -> Any:
    """Return the response of GetRequest."""
    return request_service_pb2.GetRequestResponse(request=state(handle, *sequences), **fields)
