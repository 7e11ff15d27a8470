"""Failures on the wire: one exception for engines' failures and for the gateway's own refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from headrace_proto.server.status import grpc_code
from headrace_proto.v1 import status_pb2
from headrace_proto.wire.status import failure, info_of, status_in

RETRY_SECONDS = 1.0
MAX_NAME = 128


class CallError(Exception):
    """A call failed; the status goes to its client.

    Attributes:
        status: code, sentence and typed details.
        reached: False only if the call certainly did not reach an engine, so that another one may be tried.
    """

    def __init__(self, status: status_pb2.Status, *, reached: bool = True) -> None:
        super().__init__(status.message)
        self.status = status
        self.reached = reached

    @property
    def code(self) -> grpc.StatusCode:
        """Status code."""
        return grpc_code(self.status)

    @property
    def reason(self) -> str:
        """Reason of the ErrorInfo among the details; "" if none came with it."""
        return info_of(self.status).reason

    @property
    def facts(self) -> Mapping[str, str]:
        """Metadata of that ErrorInfo."""
        return info_of(self.status).metadata


def from_rpc(error: grpc.aio.AioRpcError) -> CallError:
    """Convert the failure of a call to an engine, keeping the details that the engine sent."""
    if (status := status_in(error.trailing_metadata())) is not None:
        return CallError(status)
    return CallError(status_pb2.Status(code=error.code().value[0], message=error.details() or ""))


def shorten(text: str) -> str:
    """Cut a name that a caller sent, so that trailers stay below the 8 KiB that gRPC peers accept."""
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}… ({len(text)} characters)"


def refusal(code: grpc.StatusCode, reason: str, message: str, *details: Message, **metadata: str) -> CallError:
    """Build a failure of the gateway's own.

    Args:
        code: the gRPC code.
        reason: name of an ErrorReason without its prefix.
        message: one sentence for people.
        details: typed details that belong to the reason, besides the ErrorInfo.
        metadata: facts of the ErrorInfo.
    """
    facts = {key: shorten(value) for key, value in metadata.items()}
    return CallError(failure(code.name, reason, message, *details, metadata=facts))


def retry_info(seconds: float = RETRY_SECONDS) -> status_pb2.RetryInfo:
    """Build the detail that says when to try again."""
    delay = Duration()
    delay.FromMilliseconds(math.ceil(seconds * 1000))
    return status_pb2.RetryInfo(retry_delay=delay)


def unavailable(reason: str, message: str, **metadata: str) -> CallError:
    """Build a failure that a retry may not meet."""
    return refusal(grpc.StatusCode.UNAVAILABLE, reason, message, retry_info(), **metadata)


def invalid_field(field: str, description: str, *, reason: str = "INVALID_FIELD") -> CallError:
    """Refuse a field: `field` is its path in the request, `description` its value and what is allowed."""
    violation = status_pb2.BadRequest.FieldViolation(field=field, description=description)
    bad = status_pb2.BadRequest(field_violations=[violation])
    return refusal(grpc.StatusCode.INVALID_ARGUMENT, reason, f"{field} {description}", bad, field=field)


def no_request(why: str) -> CallError:
    """Refuse a call that sent no message, or bytes that are none."""
    bad = status_pb2.BadRequest(field_violations=[status_pb2.BadRequest.FieldViolation(description=why)])
    return refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", why, bad)


def unknown_request(handle: str) -> CallError:
    """Build UNKNOWN_REQUEST: no request has this handle or request_id."""
    message = f'no request "{shorten(handle)}": it was released, belongs to another owner, or never existed'
    return refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST", message, handle=handle)


def unknown_engine(name: str, known: list[str]) -> CallError:
    """Build UNKNOWN_ENGINE: the gateway's list has no such engine."""
    message = f'no engine "{shorten(name)}" in this gateway\'s list: {", ".join(known)}'
    return refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_ENGINE", message, engine=name)


def engine_unreachable(name: str, *, reached: bool, lost: bool = False) -> CallError:
    """Build ENGINE_UNREACHABLE: the engine does not answer.

    Args:
        name: name of the engine.
        reached: the call may have arrived there before.
        lost: it counts as lost, so that its requests should be handed over.
    """
    still = "may still exist, so try again"
    if lost:
        still = "are probably lost. They can be handed over to another engine; if it returns, try again"
    message = f'engine "{name}" does not answer; its models and requests {still} in {RETRY_SECONDS:g} s'
    error = unavailable("ENGINE_UNREACHABLE", message, engine=name, lost=str(lost).lower())
    error.reached = reached
    return error


def after_tokens(error: CallError, tokens: int) -> CallError:
    """Adapt the failure of a Generate that has delivered tokens: drop its RetryInfo, since a retry starts over."""
    if not tokens or not any(detail.type_url.endswith(".RetryInfo") for detail in error.status.details):
        return error
    final = status_pb2.Status(code=error.status.code)
    final.details.extend(detail for detail in error.status.details if not detail.type_url.endswith(".RetryInfo"))
    final.message = (
        f"{_cause(error)}. This call broke off after {tokens} tokens and cannot be resumed: a new call starts "
        "from the beginning; requests of StartRequest can be read again from any position"
    )
    return CallError(final)


def _cause(error: CallError) -> str:
    """Return the cause of a failure, without the advice that follows a semicolon or a colon."""
    return error.status.message.partition(";")[0].partition(": ")[0]


def draining() -> CallError:
    """Build DRAINING: the gateway is shutting down."""
    return unavailable(
        "DRAINING", "this gateway is shutting down and accepts nothing new: use another one, or try again"
    )


def not_allowed(field: str, why: str) -> CallError:
    """Build NOT_ALLOWED: a field requests something that this peer may not have."""
    return refusal(grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED", f"{field} {why}", field=field)


def silent_session(interval: float, limit: float) -> CallError:
    """Build SESSION_SILENT: a session's client sent nothing for too long."""
    message = f"no message came for {limit:g} s, but a ping is due every {interval:g} s: open a new session"
    return unavailable("SESSION_SILENT", message)


def full_stream(engine: str, why: str) -> CallError:
    """Build QUEUE_FULL: a session has used up its share of the stream to an engine."""
    message = f"{why}: detach some, or try again later"
    return refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", message, retry_info(), engine=engine)


def full_session(limit: int) -> CallError:
    """Build QUEUE_FULL: a session has reached its maximum number of channels."""
    message = (
        f"this session reads {limit} sequences, the most that one session may read: detach some, or try again later"
    )
    return refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", message, retry_info())


def full_calls(why: str) -> CallError:
    """Build QUEUE_FULL: a connection has used up its share of concurrent calls."""
    message = f"{why}: try again when some have ended"
    return refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", message, retry_info())


def out_of_step(engine: str, position: int, expected: int) -> CallError:
    """Build ENGINE_FAULT: an engine left a gap in a sequence's tokens, or sent some twice."""
    message = f'engine "{engine}" sent tokens from position {position} instead of {expected}: attach again'
    return refusal(grpc.StatusCode.INTERNAL, "ENGINE_FAULT", message, engine=engine)


def fault(kind: str) -> CallError:
    """Build ENGINE_FAULT: internal error of the gateway; `kind` is the name of the exception."""
    message = f"internal error of the gateway ({kind}); its log has the stack"
    return refusal(grpc.StatusCode.INTERNAL, "ENGINE_FAULT", message)
