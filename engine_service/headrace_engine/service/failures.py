"""Maps exceptions to statuses, in one place that every call of every servicer passes through."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

from headrace_proto.pure.faults import is_fault, trace
from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.logs import logger
from headrace_proto.v1.status_pb2 import Status

from headrace_engine.errors import HeadraceError, Internal
from headrace_engine.service.convert.callers import caller
from headrace_engine.service.convert.status import MAX_FACT, code_of, shorten, to_status

T = TypeVar("T")
UnaryMethod = Callable[[Any, Any], Awaitable[Any]]
StreamMethod = Callable[[Any, Any], AsyncIterator[Any]]

_log = logger(__name__)
_refusals = LogBudget()
_defects = LogBudget()

MAX_FIELDS_LOGGED = 10
"""Maximum number of wrong fields that the log names per refusal."""


@asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a generator as soon as its reader leaves, rather than when it is garbage-collected."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


class CallFailed(Exception):
    """A call ended with a status other than OK, which goes to its client."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


async def call_unary(name: str, method: UnaryMethod, request: Any) -> Any:
    """Call a servicer's method that answers once.

    Args:
        name: the RPC's name, for the log.

    Raises:
        CallFailed: the method raised.
        asyncio.CancelledError: the call was cancelled from outside.
    """
    try:
        return await method(request, None)
    except BaseException as error:
        fail(name, request, error)


async def call_stream(name: str, method: StreamMethod, request: Any) -> AsyncGenerator[Any, None]:
    """Call a servicer's method that answers with a stream. Closing this iterator closes the method's.

    Raises:
        CallFailed: the method raised, before or between its answers.
        asyncio.CancelledError: the call was cancelled from outside.
    """
    try:
        async with closing(method(request, None)) as answers:
            async for answer in answers:
                yield answer
    except BaseException as error:
        fail(name, request, error)


def fail(name: str, request: Any, error: BaseException) -> NoReturn:
    """Log a failure once, and raise the status for its client.

    Raises:
        CallFailed: it is a refusal or a defect.
        BaseException: itself, if it is neither.
    """
    if not is_fault(error) and not (isinstance(error, asyncio.CancelledError) and not _cancelled_from_outside()):
        raise error
    facts = _facts(request)
    log = _log.bind(method=name, **facts)
    if isinstance(error, HeadraceError) and not isinstance(error, Internal):
        _log_refusal(log, name, error, facts.get("handle") or facts.get("request_id", ""))
        raise CallFailed(to_status(error)) from None
    raise CallFailed(to_status(fault(log, error, facts))) from None


def _cancelled_from_outside() -> bool:
    """True if the client cancelled. A call that cancels itself is a fault: gRPC would send its client no status."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _facts(request: Any) -> dict[str, str]:
    """Return the names that identify the request in logs and details."""
    facts = {name: getattr(request, name, "") for name in ("request_id", "handle", "model_name")}
    facts["model_name"] = facts["model_name"] or getattr(getattr(request, "config", None), "model_name", "")
    return {name: shorten(value, MAX_FACT) for name, value in facts.items() if value}


def _log_refusal(log: Any, method: str, error: HeadraceError, about: str) -> None:
    """Log why a call was refused, without messages, which may quote what the caller sent."""
    omitted = _refusals.line((method, error.reason), about, caller())
    if omitted is None:
        return
    facts: dict[str, Any] = {"fields": fields} if (fields := _fields(error)) else {}
    log.info("request_refused", code=code_of(error).name, reason=error.reason, **facts, **omitted)
    log.debug("refusal_text", text=error.message)


def _fields(error: HeadraceError) -> list[str]:
    named = [violation.field for violation in error.violations if violation.field]
    return [shorten(field, MAX_FACT) for field in named[:MAX_FIELDS_LOGGED]]


def fault(log: Any, error: BaseException, facts: Mapping[str, str]) -> Internal:
    """Log a defect with its stack, and return the error for the client, which carries only the log's error_id.

    A caller who finds a defect cannot fill the log with it.

    Args:
        facts: names that identify the request, for the client.
    """
    error_id, kind = secrets.token_hex(8), type(error).__name__
    where = f"of others of this kind ({kind})"
    if (omitted := _defects.line(kind, party=caller())) is not None:
        where = f"under error_id {error_id}"
        log.error("request_failed", error_id=error_id, kind=kind, exception=trace(error), **omitted)
        log.debug("fault_text", error_id=error_id, text=str(error))
    known = isinstance(error, Internal)
    message = str(error) if known else f"internal error of the engine; its log has details {where}"
    metadata = error.metadata if isinstance(error, Internal) else {}
    return Internal(message, metadata={**facts, **metadata, "error_id": error_id})
