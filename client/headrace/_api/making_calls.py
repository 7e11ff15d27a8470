"""How the methods of the client make calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from headrace._api.connection import Connection
from headrace._transport.message_iterator import MessageIterator

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class MakingCalls:
    """Makes calls over a connection. All waiting happens here; the async client has its own."""

    _connection: Connection

    def _call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        """Make a call and return its converted response."""
        return read(self._connection.call(method, request, answer, timeout=timeout, **about))

    def _quick_call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        read: Callable[[Answer], Result],
        timeout: float | None,
        **about: Any,
    ) -> Result:
        """Make a call with the client's timeout by default."""
        return self._call(method, request, answer, read, self._connection.limit(timeout), **about)

    def _watch(self, method: str, request: Message, read: Callable[[Any], Result]) -> MessageIterator[Result]:
        """Return an iterator over the converted responses of a streaming call."""
        return MessageIterator(self._connection.stream(method, request), read, self._connection.janitor)
