"""What can go wrong, as exceptions.

HeadraceError
├── InvalidRequestError     a field, prompt, template or response format is wrong (also a ValueError)
├── NotFoundError           no such model, request, adapter or engine
│   ├── RequestReleasedError   the request was released; its results are gone
│   └── EngineLostError        the engine that held the request is gone, and its results with it
├── ConflictError           the model name or the request id is taken by something else
├── StateError              the model's state, files or size do not allow the call
├── OverloadedError         too much waits already; `retry_after` says when to come back
├── UnavailableError        nobody can serve the call now; trying again makes sense
├── AuthError               no API key, a wrong one, or one that does not allow the call; or TLS does not fit
├── DeadlineError           time ran out, or would have (also a TimeoutError)
└── InternalServerError     a defect of the engine

Every one carries `message`, `reason`, `request_id`, `details` and `retry_after`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class HeadraceError(Exception):
    """Base of all failures that Headrace reports.

    Attributes:
        message: one sentence for a person: what is wrong, with the numbers, and what to change. Without a full stop,
            which stands in the text of the exception. It names methods and arguments; `details` has fields as the wire
            names them.
        reason: the machine-readable reason, such as "QUEUE_FULL"; the name of the gRPC code where the server gave none.
        request_id: the request that failed, as its client named it; "" where none is concerned.
        details: facts that came with the failure, by name: "metadata" (dict of str), "field_violations" (list of
            {"field", "description"}), "model_name" and "state", "waiting_ahead" and "max_waiting", "handle".
        retry_after: seconds after which trying again makes sense; None where the server named no time.
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
        """The sentence, then reason and request in brackets."""
        request = f", request {_short(self.request_id)}" if self.request_id else ""
        stop = "" if self.message.endswith((".", "!", "?", "…")) else "."
        return f"{self.message}{stop} [{self.reason}{request}]"

    def about(self, request_id: str) -> HeadraceError:
        """The same failure, told of one request."""
        return _rebuild(type(self), self.message, self.reason, request_id, self.details, self.retry_after)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keyword arguments survive pickling too, so that errors cross process borders whole."""
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
    """A field is out of range, contradictory, unknown or not supported, or the prompt does not fit.

    Reasons: INVALID_FIELD, NOT_SUPPORTED, PROMPT_TOO_LONG, BAD_RESPONSE_FORMAT, BAD_TEMPLATE, POSITION_OUT_OF_RANGE.
    """

    default_reason = "INVALID_FIELD"


class NotFoundError(HeadraceError):
    """No such model, request, adapter or engine, or not for this owner.

    Reasons: UNKNOWN_MODEL, UNKNOWN_REQUEST, UNKNOWN_LORA, UNKNOWN_ENGINE.
    """

    default_reason = "UNKNOWN_REQUEST"


class RequestReleasedError(NotFoundError):
    """The request was released, by its owner or by its lease; nothing of it can be read any more."""


class EngineLostError(NotFoundError):
    """The engine that held the request is gone or restarted; what was not read is lost. Reason: ENGINE_LOST."""

    default_reason = "ENGINE_LOST"


class ConflictError(HeadraceError):
    """The name is taken. Reasons: MODEL_EXISTS (by another config), REQUEST_ID_REUSED (by another content)."""

    default_reason = "MODEL_EXISTS"


class StateError(HeadraceError):
    """The model does not allow the call now.

    Reasons: WRONG_STATE, MODEL_NOT_RUNNING, BAD_MODEL, BAD_PROCESSOR, OUT_OF_MEMORY. `details["state"]` names the
    state where one stood in the way.
    """

    default_reason = "WRONG_STATE"


class OverloadedError(HeadraceError):
    """Too much waits already; `retry_after` says when to come back. Reasons: QUEUE_FULL, RATE_LIMITED, RESULTS_FULL."""

    default_reason = "QUEUE_FULL"


class UnavailableError(HeadraceError):
    """Nobody can serve the call now; trying again makes sense, and was done for as long as the time given allowed.

    Reasons: NO_ENGINE, DRAINING, ENGINE_UNREACHABLE, CORE_RESTARTING, MODEL_STARTING, SESSION_SILENT; UNAVAILABLE where
    no server answered at all; CLIENT_CLOSED where this client was closed.
    """

    default_reason = "UNAVAILABLE"


class AuthError(HeadraceError):
    """The API key is missing, wrong, or does not allow the call, or client and server do not fit each other.

    Reasons: BAD_API_KEY, NOT_ALLOWED; TLS_MISMATCH where no connection can ever be made, since one side speaks TLS and
    the other does not, or the server's certificate is not accepted.
    """

    default_reason = "BAD_API_KEY"


class DeadlineError(HeadraceError, TimeoutError):
    """Time ran out. Reasons: DEADLINE_EXCEEDED (the call's own timeout), DEADLINE_NOT_MET (refused beforehand)."""

    default_reason = "DEADLINE_EXCEEDED"


class InternalServerError(HeadraceError):
    """A defect of the engine, or an answer that breaks the contract. Reason: ENGINE_FAULT."""

    default_reason = "ENGINE_FAULT"
