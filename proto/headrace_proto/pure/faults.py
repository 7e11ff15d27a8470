"""What is a failure of the code, and what is somebody's wish to end."""

from __future__ import annotations

from asyncio import CancelledError


def is_fault(error: BaseException) -> bool:
    """True if an exception is a failure of the code, rather than a cancellation or a request to exit.

    Native libraries panic with exceptions that are no `Exception`. Whoever is the last to catch failures catches
    `BaseException`, and raises again what is none by this.
    """
    return not isinstance(error, CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit)
