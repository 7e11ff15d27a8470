"""Failures reported to callers, one class per gRPC status code.

HeadraceError
├── InvalidArgument       INVALID_FIELD, NOT_SUPPORTED, PROMPT_TOO_LONG, BAD_RESPONSE_FORMAT, BAD_TEMPLATE
├── NotFound              UNKNOWN_MODEL, UNKNOWN_REQUEST, UNKNOWN_LORA, UNKNOWN_ENGINE, ENGINE_LOST
├── AlreadyExists         MODEL_EXISTS, REQUEST_ID_REUSED, LORA_EXISTS
├── OutOfRange            POSITION_OUT_OF_RANGE
├── FailedPrecondition    WRONG_STATE, MODEL_NOT_RUNNING, BAD_MODEL, BAD_PROCESSOR,
│                         OUT_OF_MEMORY, LORA_IN_USE
├── ResourceExhausted     QUEUE_FULL, RATE_LIMITED, RESULTS_FULL
├── Unavailable           NO_ENGINE, DRAINING, ENGINE_UNREACHABLE, CORE_RESTARTING,
│                         MODEL_STARTING
├── DeadlineExceeded      DEADLINE_NOT_MET
└── Internal              ENGINE_FAULT
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_proto.pure.faults import is_fault


@dataclass(frozen=True)
class FieldViolation:
    """One invalid field of a request.

    Attributes:
        field: path from the RPC's request message, such as "config.top_p".
        description: the received value and the allowed range, as text.
    """

    field: str
    description: str


class HeadraceError(Exception):
    """A failure with a reason that every client knows.

    Args:
        message: one human-readable sentence: what is wrong, with the numbers, and what to change.
        reason: the machine-readable reason, such as "QUEUE_FULL"; defaults to the class's own.
        violations: the invalid fields, if the reason is about fields.
        metadata: further facts by name, such as {"model_name": "smol"}.
        retry_after: seconds after which a retry makes sense; None if it does not.
    """

    reason: str = "ENGINE_FAULT"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).reason
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class InvalidArgument(HeadraceError):
    """A field is out of range, contradictory, unknown, or not supported by this build."""

    reason = "INVALID_FIELD"

    @classmethod
    def field(cls, field: str, description: str, *, reason: str | None = None) -> InvalidArgument:
        """Return the error for one invalid field: its path, and a description with value and allowed range."""
        return cls(f"{field} {description}", reason=reason, violations=[FieldViolation(field, description)])

    @classmethod
    def fields(cls, violations: Sequence[FieldViolation], *, reason: str | None = None) -> InvalidArgument:
        """Return the error for several fields; its message omits the prefix "config."."""
        text = "; ".join(
            f"{violation.field.removeprefix('config.')} {violation.description}" for violation in violations
        )
        return cls(text, reason=reason, violations=violations)

    @classmethod
    def unsupported(cls, field: str, description: str) -> InvalidArgument:
        """Return the error for a field value that this build or device does not support."""
        return cls.field(field, description, reason="NOT_SUPPORTED")


class NotFound(HeadraceError):
    """No such model, request, adapter or engine, or not for this owner."""

    reason = "UNKNOWN_REQUEST"


class AlreadyExists(HeadraceError):
    """The name or key is taken by something else."""

    reason = "MODEL_EXISTS"


class OutOfRange(HeadraceError):
    """A position outside the log."""

    reason = "POSITION_OUT_OF_RANGE"


class FailedPrecondition(HeadraceError):
    """The state of a model, or its files or size, do not allow the call.

    Args:
        state: name of the state that does not allow the call, if that is the cause.
    """

    reason = "WRONG_STATE"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        state: str | None = None,
    ) -> None:
        super().__init__(message, reason=reason, violations=violations, metadata=metadata, retry_after=retry_after)
        self.state = state


class ResourceExhausted(HeadraceError):
    """Too many requests are waiting, or their results take too much memory.

    Args:
        waiting_ahead: number of requests that would have been served before this one.
        max_waiting: maximum number of waiting sequences; None: that is not the limit reached.
    """

    reason = "QUEUE_FULL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
        waiting_ahead: int = 0,
        max_waiting: int | None = None,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata, retry_after=retry_after)
        self.waiting_ahead = waiting_ahead
        self.max_waiting = max_waiting


class Unauthenticated(HeadraceError):
    """The caller did not prove who it is."""

    reason = "BAD_API_KEY"


class PermissionDenied(HeadraceError):
    """The caller may not do that."""

    reason = "NOT_ALLOWED"


class Unavailable(HeadraceError):
    """The call cannot be served now; a retry makes sense."""

    reason = "DRAINING"


class DeadlineExceeded(HeadraceError):
    """The request's deadline cannot be met."""

    reason = "DEADLINE_NOT_MET"


class Internal(HeadraceError):
    """A defect of the engine."""

    reason = "ENGINE_FAULT"


class BadModel(FailedPrecondition):
    """The files of a model are missing, damaged or of an unsupported kind."""

    reason = "BAD_MODEL"


class BadProcessor(FailedPrecondition):
    """A logits processor that the engine was started with cannot be read or compiled."""

    reason = "BAD_PROCESSOR"


class OutOfMemory(FailedPrecondition):
    """A model does not fit; the message says what to lower."""

    reason = "OUT_OF_MEMORY"


def in_words(error: BaseException) -> str:
    """Return type and text of any exception, in characters that every message can carry."""
    try:
        text = str(error)
    except BaseException as other:
        if not is_fault(other):
            raise
        text = "its text cannot be formatted"
    return sendable(f"{type(error).__name__}: {text}")


def quoted(name: str) -> str:
    """Return a name in double quotes, as in all messages."""
    return json.dumps(name, ensure_ascii=False)


def sendable(text: str) -> str:
    """Return a text with lone surrogates escaped."""
    return text.encode(errors="backslashreplace").decode()


def shown(value: object) -> str:
    """Return the representation of a value, cut to 80 characters, at a cost that does not grow with the value."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 3]}..."


_LONGEST_QUOTE = 80
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxarray = 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST_QUOTE
