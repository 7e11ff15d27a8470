"""Converting the wire's Status into an exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from headrace_proto.v1 import model_pb2, status_pb2
from headrace_proto.wire.status import CODE_NAMES, details_of, state_name

from headrace._base.caller_words import in_arguments, in_methods
from headrace.errors import (
    AuthError,
    ConflictError,
    DeadlineError,
    EngineLostError,
    HeadraceError,
    InternalServerError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    RequestReleasedError,
    StateError,
    UnavailableError,
)

_CLASSES: dict[str, type[HeadraceError]] = {
    "CANCELLED": UnavailableError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": ConflictError,
    "PERMISSION_DENIED": AuthError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "FAILED_PRECONDITION": StateError,
    "ABORTED": UnavailableError,
    "OUT_OF_RANGE": InvalidRequestError,
    "UNIMPLEMENTED": InvalidRequestError,
    "UNAVAILABLE": UnavailableError,
    "UNAUTHENTICATED": AuthError,
}


def error_from_status(status: status_pb2.Status, *, request_id: str = "", handle: str = "") -> HeadraceError:
    """Return the exception for a failure on the wire.

    Args:
        status: the failure; details of unknown type are ignored, and without an ErrorInfo the reason is the name of
            the code.
        request_id: id of the request that the call was about, used if the details name none.
        handle: handle of that request; if it is unknown to the server, it was released.
    """
    facts = _facts(status)
    code = CODE_NAMES.get(status.code, "UNKNOWN")
    reason = facts.pop("reason", "") or code
    metadata = facts.get("metadata", {})
    named = facts.pop("request_id", "") or metadata.get("request_id", "")
    released = bool(handle) or "handover" in metadata  # The server sends it for a request_id.
    return _class_of(code, reason, released)(
        _sentence(status.message, facts) or f"the call failed with {code}",
        reason=reason,
        request_id=named or request_id,
        retry_after=facts.pop("retry_after", None),
        details=facts,
    )


def _sentence(message: str, facts: dict[str, Any]) -> str:
    """Return the message with the client's names; details keep the wire's."""
    return in_arguments(
        in_methods(message), [one["field"] for one in facts.get("field_violations", ()) if one["field"]]
    )


def _class_of(code: str, reason: str, released: bool) -> type[HeadraceError]:
    if reason == "ENGINE_LOST":
        return EngineLostError
    if reason == "UNKNOWN_REQUEST" and released:
        return RequestReleasedError
    return _CLASSES.get(code, InternalServerError)


def _facts(status: status_pb2.Status) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for detail in details_of(status):
        facts.update(_READERS[type(detail)](detail))
    return facts


def _read_error_info(info: status_pb2.ErrorInfo) -> dict[str, Any]:
    return {"reason": info.reason, "metadata": dict(info.metadata)}


def _read_retry_info(info: status_pb2.RetryInfo) -> dict[str, Any]:
    return {"retry_after": info.retry_delay.seconds + info.retry_delay.nanos / 1e9}


def _read_bad_request(info: status_pb2.BadRequest) -> dict[str, Any]:
    violations = [{"field": one.field, "description": one.description} for one in info.field_violations]
    return {"field_violations": violations}


def _read_request_info(info: status_pb2.RequestInfo) -> dict[str, Any]:
    return {"request_id": info.request_id, "handle": info.serving_data}


def _read_queue_info(info: status_pb2.QueueInfo) -> dict[str, Any]:
    return {"waiting_ahead": info.waiting_ahead, "max_waiting": info.max_waiting}


def _read_model_state(info: model_pb2.ModelStateInfo) -> dict[str, Any]:
    return {"model_name": info.model_name, "state": state_name(info.state)}


_READERS: dict[type[Message], Callable[[Any], dict[str, Any]]] = {
    status_pb2.ErrorInfo: _read_error_info,
    status_pb2.RetryInfo: _read_retry_info,
    status_pb2.BadRequest: _read_bad_request,
    status_pb2.RequestInfo: _read_request_info,
    status_pb2.QueueInfo: _read_queue_info,
    model_pb2.ModelStateInfo: _read_model_state,
}
