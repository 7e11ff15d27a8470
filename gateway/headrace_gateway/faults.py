"""Defects of the gateway itself: told in the log, and to whom they hit."""

from __future__ import annotations

import traceback

import structlog

from headrace_gateway import status
from headrace_gateway.status import CallError

log = structlog.get_logger()


def defect(where: str, error: BaseException) -> CallError:
    """The log gets the places and the exception's type, not its text, which may quote what a user sent.

    Args:
        where: the method, or the task that goes on.

    Returns:
        What a caller is told.
    """
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    log.error("defect", method=where, error=type(error).__name__, frames=frames)
    return status.fault(type(error).__name__)
