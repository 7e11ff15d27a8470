"""An iterator over converted responses of a streaming call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from headrace_proto.wire.transport import CallError, MessageStream

from headrace._base.closing import Closing
from headrace._base.janitor import Janitor
from headrace._values.wire_errors import error_from_status

Item = TypeVar("Item")


class MessageIterator(Closing, Generic[Item]):
    """An iterator that owns a call, and ends it when closed, left as a context manager, or dropped.

    Iterating raises `HeadraceError` when the call fails.
    """

    def __init__(self, stream: MessageStream, convert: Callable[[Any], Item], janitor: Janitor) -> None:
        self._stream = stream
        self._convert = convert
        self._closed = False
        janitor.start()
        weakref.finalize(self, janitor.submit, stream.cancel).atexit = False

    def __iter__(self) -> Iterator[Item]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Item:
        """Wait for the next result and return it."""
        if self._closed:
            raise StopIteration
        try:
            return self._convert(next(self._stream))
        except CallError as failure:
            if self._closed:
                raise StopIteration from None
            raise error_from_status(failure.status) from None

    def close(self) -> None:
        """End the call, and with it a `next` that waits."""
        self._closed = True
        self._stream.cancel()
