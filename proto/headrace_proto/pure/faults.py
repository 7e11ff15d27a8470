"""Defects of the code: distinguished from cancellations, and described without texts of users."""

from __future__ import annotations

import traceback
from asyncio import CancelledError


def is_fault(error: BaseException) -> bool:
    """True if an exception is a failure of the code, rather than a cancellation or a request to exit.

    Native libraries panic with exceptions that are not an `Exception`. So outermost handlers catch `BaseException`, and
    re-raise what is not a fault.
    """
    return not isinstance(error, CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit)


def trace(error: BaseException) -> str:
    """Format an exception and its causes without their texts, which may quote a prompt."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "" if cause is None else f"{trace(cause)}which led to\n"
    return f"{before}{''.join(traceback.format_tb(error.__traceback__))}{type(error).__qualname__}\n"
