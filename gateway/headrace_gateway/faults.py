"""Defects of the gateway itself: logged, and returned to the caller as INTERNAL."""

from __future__ import annotations

import traceback

import structlog

from headrace_gateway import status
from headrace_gateway.status import CallError

log = structlog.get_logger()


def defect(where: str, error: BaseException) -> CallError:
    """Log a defect. Only the stack and the exception's type: its text may quote what a user sent.

    Args:
        where: the method, or the background task.

    Returns:
        The error to fail the call with.
    """
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    log.error("defect", method=where, error=type(error).__name__, frames=frames)
    return status.fault(type(error).__name__)
