"""Waiting for what blocks without holding up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from headrace_engine.errors import Internal, in_words

_Result = TypeVar("_Result")


async def in_daemon(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """The result of work that blocks, done in a thread of its own. A caller that is cut leaves it going.

    For the few waits that an engine has at a time, such as that for a process to end. What callers can ask for at
    will belongs into a pool.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_Result] = loop.create_future()

    def tell(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not answer.done():
            set_outcome(outcome)

    def do() -> None:
        try:
            told: tuple[Any, Any] = answer.set_result, work(*arguments)
        except Exception as error:
            told = answer.set_exception, error
        except BaseException as error:  # Nobody else would hear of it.
            told = answer.set_exception, Internal(in_words(error))
        with suppress(RuntimeError):  # The event loop is closed.
            loop.call_soon_threadsafe(tell, *told)

    threading.Thread(target=do, name="headrace-wait", daemon=True).start()
    return await answer
