"""Runs the synchronous client's tests on the asynchronous client: each call runs in an event loop of another thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from headrace import AsyncClient, AsyncResultQueue
from headrace._api.aio_text_stream import AsyncTextStream
from headrace._transport.aio_iterator import AsyncMessageIterator
from headrace._transport.aio_transport import for_asyncio
from headrace_proto.wire.transport import Transport


class LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client-loop", daemon=True)
        self._thread.start()

    def run(self, act: Callable[[], Any]) -> Any:
        """Run a function in the loop, awaiting its result if needed; return the result."""
        return asyncio.run_coroutine_threadsafe(_do(act), self._loop).result()

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _do(act: Callable[[], Any]) -> Any:
    answer = act()
    return await answer if inspect.isawaitable(answer) else answer


class InLoop:
    """An object of the asynchronous client, used like that of the synchronous one."""

    def __init__(self, thread: LoopThread, there: Any) -> None:
        self._thread = thread
        self._there = there

    def __getattr__(self, name: str) -> Any:
        found = self._thread.run(lambda: getattr(self._there, name))
        if not inspect.ismethod(found):
            return self._here(found)
        return functools.partial(self._call, found)

    def _call(self, method: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return self._here(self._thread.run(functools.partial(method, *given, **named)))

    def __iter__(self) -> Iterator[Any]:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next element."""
        try:
            return self._thread.run(lambda: anext(self._there))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._thread.run(self._there.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(lambda: self._there.__aexit__(*error))

    def _here(self, answer: Any) -> Any:
        """Wrap a result for use in this thread."""
        if isinstance(answer, AsyncResultQueue | AsyncTextStream | AsyncMessageIterator):
            return InLoop(self._thread, answer)
        if isinstance(answer, tuple | list) and any(isinstance(one, AsyncResultQueue) for one in answer):
            return type(answer)(self._here(one) for one in answer)
        return answer


def loop_client(thread: LoopThread, target: str | Transport, **options: Any) -> InLoop:
    """Return an AsyncClient; the arguments are those of Client."""
    transport = target if isinstance(target, str) else for_asyncio(target)
    return InLoop(thread, AsyncClient(transport, **options))
