"""Defects of the gateway itself: logged, and returned to the caller as INTERNAL."""

from __future__ import annotations

from headrace_proto.pure.faults import trace
from headrace_proto.server.logs import logger

from headrace_gateway import status
from headrace_gateway.status import CallError

log = logger(__name__)


def defect(where: str, error: BaseException) -> CallError:
    """Log a defect. Only the stack and the exception's type: texts may quote what a user sent.

    Args:
        where: the method, or the background task.

    Returns:
        The error to fail the call with.
    """
    log.error("defect", method=where, exception=trace(error))
    return status.fault(type(error).__name__)
