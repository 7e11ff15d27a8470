"""Defects of the gateway itself: logged, and returned to the caller as INTERNAL."""

from __future__ import annotations

from headrace_proto.pure.faults import trace
from headrace_proto.pure.log_budget import LogBudget
from headrace_proto.server.logs import logger

from headrace_gateway import status
from headrace_gateway.status import CallError

log = logger(__name__)
_lines = LogBudget()


def defect(where: str, error: BaseException) -> CallError:
    """Log a defect, unless many like it were logged. Only the stack and the type: texts may quote what a user sent.

    Args:
        where: the method, or the background task.

    Returns:
        The error to fail the call with.
    """
    if (omitted := _lines.line((where, type(error).__name__))) is not None:
        log.error("defect", method=where, exception=trace(error), **omitted)
    return status.fault(type(error).__name__)
