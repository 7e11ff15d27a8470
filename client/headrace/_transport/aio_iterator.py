"""An iterator over converted responses of a streaming call, for the asynchronous client."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headrace_proto.wire.transport import CallError

from headrace._base.aio_waiting import HomeLoop
from headrace._transport.aio_transport import AsyncMessageStream
from headrace._values.wire_errors import error_from_status

Item = TypeVar("Item")


class AsyncMessageIterator(Generic[Item]):
    """An iterator that owns a call, and ends it when closed, left as a context manager, cancelled, or dropped.

    Iterating raises `HeadraceError` when the call fails.
    """

    def __init__(self, stream: AsyncMessageStream, convert: Callable[[Any], Item], home: HomeLoop) -> None:
        self._stream = stream
        self._convert = convert
        self._closed = False
        weakref.finalize(self, home.submit, stream.cancel).atexit = False

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Item:
        """Wait for the next result and return it."""
        if self._closed:
            raise StopAsyncIteration
        try:
            return self._convert(await anext(self._stream))
        except CallError as failure:
            if self._closed:
                raise StopAsyncIteration from None
            raise error_from_status(failure.status) from None

    async def close(self) -> None:
        """End the call, and with it a step that waits."""
        self._closed = True
        self._stream.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
