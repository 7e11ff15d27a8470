"""Runs blocking work in a daemon thread, which does not keep the process from exiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def in_daemon(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run blocking work in a thread of its own and return its result. If the caller is cancelled, it keeps running.

    Meant for a few waits at a time, such as for the end of a process. Work that callers can request at will belongs
    in a pool.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Result] = loop.create_future()

    def resolve(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not answer.done():
            set_outcome(outcome)

    def do() -> None:
        try:
            outcome: tuple[Any, Any] = answer.set_result, work(*arguments)
        except Exception as error:
            outcome = answer.set_exception, error
        except BaseException as error:  # Otherwise it would be lost with the thread.
            outcome = answer.set_exception, RuntimeError(type(error).__name__)
        with suppress(RuntimeError):  # The event loop is closed.
            loop.call_soon_threadsafe(resolve, *outcome)

    threading.Thread(target=do, name="headrace-wait", daemon=True).start()
    return await answer
