"""Exceptions that the client raises.

HeadraceError
├── InvalidRequestError     a field, prompt, template or response format is invalid (also a ValueError)
├── NotFoundError           no such model, request, adapter or engine
│   ├── RequestReleasedError   the request was released; its results are gone
│   └── EngineLostError        the engine that held the request is gone, and its results with it
├── ConflictError           the model name or the request id is in use with other content
├── StateError              the model's state, files or size do not allow the call
├── OverloadedError         too many requests are waiting; `retry_after` is the time to wait before a retry
├── UnavailableError        no server can serve the call now; a later retry may succeed
├── AuthError               the API key is missing, wrong or not sufficient; or TLS settings do not match
├── DeadlineError           the time ran out, or would have (also a TimeoutError)
└── InternalServerError     a defect of the engine

All have the attributes `message`, `reason`, `request_id`, `details` and `retry_after`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class HeadraceError(Exception):
    """Base class of all errors that Headrace reports.

    Attributes:
        message: what is wrong, with the values, and what to change, as one sentence without a full stop. It names
            methods and arguments of this client; `details` has field names of the wire contract.
        reason: machine-readable reason, such as "QUEUE_FULL"; the name of the gRPC code if the server gave none.
        request_id: id of the request that failed, as chosen by its client; "" if the error is not about a request.
        details: additional information, by name: "metadata" (dict of str), "field_violations" (list of
            {"field", "description"}), "model_name" and "state", "waiting_ahead" and "max_waiting", "handle".
        retry_after: seconds to wait before a retry; None if the server gave no time.
    """

    default_reason: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        request_id: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.request_id = request_id
        self.details = dict(details or {})
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Return the message as a sentence, followed by reason and request in brackets."""
        request = f", request {_short(self.request_id)}" if self.request_id else ""
        stop = "" if self.message.endswith((".", "!", "?", "…")) else "."
        return f"{self.message}{stop} [{self.reason}{request}]"

    def about(self, request_id: str) -> HeadraceError:
        """Return a copy of the error with another request id."""
        return _rebuild(type(self), self.message, self.reason, request_id, self.details, self.retry_after)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle keyword arguments too, so that errors pass between processes unchanged."""
        return _rebuild, (type(self), self.message, self.reason, self.request_id, self.details, self.retry_after)


def _short(request_id: str) -> str:
    return request_id if len(request_id) <= 8 else f"{request_id[:4]}…"


def _rebuild(
    kind: type[HeadraceError],
    message: str,
    reason: str,
    request_id: str,
    details: Mapping[str, Any],
    retry_after: float | None,
) -> HeadraceError:
    return kind(message, reason=reason, request_id=request_id, details=details, retry_after=retry_after)


class InvalidRequestError(HeadraceError, ValueError):
    """A field is out of range, contradictory, unknown or not supported, or the prompt is too long.

    Reasons: INVALID_FIELD, NOT_SUPPORTED, PROMPT_TOO_LONG, BAD_RESPONSE_FORMAT, BAD_TEMPLATE, POSITION_OUT_OF_RANGE.
    """

    default_reason = "INVALID_FIELD"


class NotFoundError(HeadraceError):
    """There is no such model, request, adapter or engine, or it belongs to another owner.

    Reasons: UNKNOWN_MODEL, UNKNOWN_REQUEST, UNKNOWN_LORA, UNKNOWN_ENGINE.
    """

    default_reason = "UNKNOWN_REQUEST"


class RequestReleasedError(NotFoundError):
    """The request was released, by its owner or when its lease expired; its results can no longer be read."""


class EngineLostError(NotFoundError):
    """The request's engine is gone or was restarted; unread results are lost. Reason: ENGINE_LOST."""

    default_reason = "ENGINE_LOST"


class ConflictError(HeadraceError):
    """The name is in use.

    Reasons: MODEL_EXISTS (with another config), REQUEST_ID_REUSED and LORA_EXISTS (with other content).
    """

    default_reason = "MODEL_EXISTS"


class StateError(HeadraceError):
    """The state of the model does not allow the call.

    Reasons: WRONG_STATE, MODEL_NOT_RUNNING, BAD_MODEL, BAD_PROCESSOR, OUT_OF_MEMORY, LORA_IN_USE. `details["state"]` is
    the model's state, if that is the cause.
    """

    default_reason = "WRONG_STATE"


class OverloadedError(HeadraceError):
    """Too many requests are waiting; `retry_after` is the time to wait before a retry, in seconds.

    Reasons: QUEUE_FULL, RATE_LIMITED, RESULTS_FULL.
    """

    default_reason = "QUEUE_FULL"


class UnavailableError(HeadraceError):
    """No server can serve the call now. The client has retried as long as its timeout and policy allow.

    Reasons: NO_ENGINE, DRAINING, ENGINE_UNREACHABLE, CORE_RESTARTING, MODEL_STARTING, SESSION_SILENT; UNAVAILABLE if no
    server answered; CLIENT_CLOSED if this client was closed.
    """

    default_reason = "UNAVAILABLE"


class AuthError(HeadraceError):
    """The API key is missing, wrong or not sufficient, or the TLS settings of client and server do not match.

    Reasons: BAD_API_KEY, NOT_ALLOWED; TLS_MISMATCH if no connection is possible, because only one side uses TLS or the
    server's certificate is not accepted.
    """

    default_reason = "BAD_API_KEY"


class DeadlineError(HeadraceError, TimeoutError):
    """The time ran out. Reasons: DEADLINE_EXCEEDED (the call timed out), DEADLINE_NOT_MET (rejected in advance)."""

    default_reason = "DEADLINE_EXCEEDED"


class InternalServerError(HeadraceError):
    """A defect of the engine, or a response that violates the contract. Reason: ENGINE_FAULT."""

    default_reason = "ENGINE_FAULT"
