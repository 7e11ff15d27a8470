"""Conversion of exceptions to a Status with typed details, and back.

gRPC limits the trailers of a call to 8 KiB in total, where non-ASCII text takes three times its bytes. So long texts
are cut, with a note of their length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message
from headrace_proto.v1.model_pb2 import ModelStateInfo
from headrace_proto.v1.status_pb2 import BadRequest, ErrorInfo, QueueInfo, RequestInfo, RetryInfo, Status
from headrace_proto.wire.status import DOMAIN, details_of, pack, state_name

from headrace_engine import errors
from headrace_engine.errors import FailedPrecondition, FieldViolation, HeadraceError, ResourceExhausted
from headrace_engine.service.convert.codec import read_seconds, write_seconds

MAX_MESSAGE = 640
"""Maximum bytes of a status message."""

MAX_DESCRIPTION = 400
"""Maximum bytes of a violation's description."""

MAX_FACT = 128
"""Maximum bytes of a violation's path, and of a value of the metadata."""

MAX_VIOLATIONS = 6
"""Maximum violations in one status; beyond that, the last one gives the number left out."""

_CODES: dict[type[HeadraceError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Internal: grpc.StatusCode.INTERNAL,
}
_CLASSES = {code.value[0]: kind for kind, code in _CODES.items()}


def code_of(error: HeadraceError) -> grpc.StatusCode:
    """Return the status code of an exception, by its type."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)


def plain_status(code: grpc.StatusCode, message: str) -> Status:
    """Build a status without details, like gRPC's own: of a call cancelled, past its deadline, or of unknown method."""
    return Status(code=code.value[0], message=message)


def to_status(error: HeadraceError) -> Status:
    """Convert an exception to a Status."""
    status = Status()
    fill_status(error, status)
    return status


def fill_status(error: HeadraceError, status: Status) -> None:
    """Write an exception into a Status: code, message, and typed details."""
    status.code = code_of(error).value[0]
    status.message = shorten(error.message, MAX_MESSAGE)
    status.details.extend(map(pack, _details(error)))


def shorten(text: str, limit: int) -> str:
    """Cut a text to at most `limit` bytes, with a note of its length."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    note = f"… ({len(text)} characters in all)"
    return encoded[: limit - len(note.encode())].decode(errors="ignore") + note


def _details(error: HeadraceError) -> Iterator[Message]:
    metadata = {name: shorten(value, MAX_FACT) for name, value in error.metadata.items()}
    yield ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    if error.violations:
        yield BadRequest(field_violations=list(_violations(error.violations)))
    if error.retry_after is not None:
        info = RetryInfo()
        write_seconds(max(error.retry_after, 0.001), info.retry_delay)
        yield info
    if isinstance(error, ResourceExhausted) and error.max_waiting is not None:
        yield QueueInfo(waiting_ahead=error.waiting_ahead, max_waiting=error.max_waiting)
    if isinstance(error, FailedPrecondition) and error.state is not None:
        name = error.metadata.get("model_name", "")
        yield ModelStateInfo(model_name=name, state=f"MODEL_STATE_{error.state}")
    if isinstance(error, errors.Internal) and {"request_id", "handle"} & set(metadata):
        yield RequestInfo(request_id=metadata.get("request_id", ""), serving_data=metadata.get("handle", ""))


def _violations(violations: Sequence[FieldViolation]) -> Iterator[BadRequest.FieldViolation]:
    listed = violations if len(violations) <= MAX_VIOLATIONS else violations[: MAX_VIOLATIONS - 1]
    for each in listed:
        description = shorten(each.description, MAX_DESCRIPTION)
        yield BadRequest.FieldViolation(field=shorten(each.field, MAX_FACT), description=description)
    if len(listed) < len(violations):
        rest = len(violations) - len(listed)
        yield BadRequest.FieldViolation(description=f"{rest} more fields are wrong and not listed here")


def to_error(status: Status) -> HeadraceError:
    """Convert a Status to the exception that it was built from."""
    found: dict[type[Message], Any] = {type(detail): detail for detail in details_of(status)}
    info = found.get(ErrorInfo, ErrorInfo())
    retry = read_seconds(found[RetryInfo].retry_delay) if RetryInfo in found else None
    kind = _CLASSES.get(status.code, errors.Internal)
    if kind is ResourceExhausted:
        queue = found.get(QueueInfo)
        return ResourceExhausted(
            status.message,
            reason=info.reason,
            retry_after=retry,
            metadata=info.metadata,
            waiting_ahead=queue.waiting_ahead if queue else 0,
            max_waiting=queue.max_waiting if queue else None,
        )
    wrong = found.get(BadRequest, BadRequest()).field_violations
    violations = [FieldViolation(each.field, each.description) for each in wrong]
    error = kind(status.message, reason=info.reason, violations=violations, metadata=info.metadata, retry_after=retry)
    if isinstance(error, FailedPrecondition) and ModelStateInfo in found:
        error.state = state_name(found[ModelStateInfo].state)
    return error
