"""Failures on the wire: the codes, the typed details of a Status, and the trailer that carries both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.any_pb2 import Any as PackedDetail
from google.protobuf.message import DecodeError, Message

from headrace_proto.v1.model_pb2 import ModelState, ModelStateInfo
from headrace_proto.v1.status_pb2 import BadRequest, ErrorInfo, QueueInfo, RequestInfo, RetryInfo, Status

DOMAIN = "headrace"
"""Domain of our ErrorInfo."""

DETAILS_KEY = "grpc-status-details-bin"
"""Trailer of a failed call that carries its Status."""

# gRPC's codes by number, written out because a transport without gRPC uses them too.
CODE_NAMES = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}
CODES = {name: number for number, name in CODE_NAMES.items()}

_STATE = "MODEL_STATE_"
_KINDS: dict[str, type[Message]] = {
    **{f"google.rpc.{kind.DESCRIPTOR.name}": kind for kind in (ErrorInfo, RetryInfo, BadRequest, RequestInfo)},
    **{kind.DESCRIPTOR.full_name: kind for kind in (QueueInfo, ModelStateInfo)},
}
"""Details by their names on the wire: those with a google.rpc equivalent use its name, so that every gRPC library reads
them."""
_NAMES = {kind: name for name, kind in _KINDS.items()}


def failure(
    code: str, reason: str, message: str, *details: Message, metadata: Mapping[str, str] | None = None
) -> Status:
    """Build a Status of ours.

    Args:
        code: name of the gRPC code.
        reason: name of an ErrorReason without its prefix.
        details: details that belong to the reason, besides the ErrorInfo.
        metadata: facts of the ErrorInfo.
    """
    info = ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    return Status(code=CODES[code], message=message, details=[pack(info), *map(pack, details)])


def pack(detail: Message) -> PackedDetail:
    """Pack a detail under its type URL."""
    url = f"type.googleapis.com/{_NAMES[type(detail)]}"
    return PackedDetail(type_url=url, value=detail.SerializeToString(deterministic=True))


def details_of(status: Status) -> list[Message]:
    """Return the details of a failure, without those of unknown type.

    A malformed one is left out as well: it must not hide the failure that it describes.
    """
    return [detail for packed in status.details if (detail := _unpack(packed)) is not None]


def info_of(status: Status) -> ErrorInfo:
    """Return our own ErrorInfo among the details; an empty one if there is none."""
    infos = (detail for detail in details_of(status) if isinstance(detail, ErrorInfo))
    info = next(infos, ErrorInfo())
    return info if info.domain == DOMAIN else ErrorInfo()


def state_name(state: ModelState) -> str:
    """Return the name of a model's state without its prefix; the number if this build does not know it."""
    return ModelState.Name(state).removeprefix(_STATE) if state in ModelState.values() else str(state)


def trailer_of(status: Status) -> tuple[tuple[str, bytes], ...]:
    """Return the trailer that carries a failure."""
    return ((DETAILS_KEY, status.SerializeToString()),)


def has_status(trailers: Iterable[tuple[str, Any]] | None) -> bool:
    """True if a server of ours sent the trailers of a failed call."""
    return any(key == DETAILS_KEY for key, _ in trailers or ())


def status_in(trailers: Iterable[tuple[str, Any]] | None) -> Status | None:
    """Return the failure that the trailers of a call carry; None if there is none, or it is malformed."""
    for key, value in trailers or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return Status.FromString(value)
            except DecodeError:
                return None
    return None


def _unpack(packed: PackedDetail) -> Message | None:
    kind = _KINDS.get(packed.type_url.rpartition("/")[2])
    try:
        return None if kind is None else kind.FromString(packed.value)
    except DecodeError:
        return None
