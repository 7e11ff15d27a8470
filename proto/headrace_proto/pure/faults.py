"""What is a failure of the code, and what is somebody's wish to end."""

from __future__ import annotations

from asyncio import CancelledError


def is_fault(error: BaseException) -> bool:
    """Whether an exception is a failure of the code, and not somebody's wish to end what is being done.

    Native libraries panic with exceptions that are no `Exception`. Whoever is the last to catch failures catches
    `BaseException`, and raises again what is none by this.
    """
    return not isinstance(error, CancelledError | KeyboardInterrupt | SystemExit | GeneratorExit)
