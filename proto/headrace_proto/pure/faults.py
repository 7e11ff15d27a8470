"""Distinguishes defects of the code from cancellations and requests to exit."""

from __future__ import annotations

from asyncio import CancelledError


def is_fault(error: BaseException) -> bool:
    """True if an exception is a failure of the code, rather than a cancellation or a request to exit.

    Native libraries panic with exceptions that are not an `Exception`. So outermost handlers catch `BaseException`, and
    re-raise what is not a fault.
    """
    return not isinstance(error, CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit)
