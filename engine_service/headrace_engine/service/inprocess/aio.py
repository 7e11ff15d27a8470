"""The in-process transport for callers in an event loop other than the engine's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from headrace_proto.pure.daemon_thread import in_daemon

from headrace_engine.service.inprocess.call import Call, Conversation, End

if TYPE_CHECKING:
    from headrace_engine.service.inprocess.transport import InProcessTransport


class AsyncInProcessTransport:
    """Carries calls to an engine in this process. A `headrace._transport.aio_transport.AsyncTransport`.

    Args:
        transport: owns the engine; closed by `close`.
    """

    def __init__(self, transport: InProcessTransport) -> None:
        self._transport = transport

    async def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:  # noqa: ASYNC109
        """Make a unary call.

        Raises:
            CallError: the call failed.
        """
        call = self._transport.begin(AsyncCall, method, request, timeout)
        try:
            return await anext(call)
        except BaseException:
            call.cancel()
            raise

    def stream(self, method: str, request: Message, *, timeout: float | None) -> AsyncCall:
        """Begin a server-streaming call; return at once.

        Raises:
            CallError: the transport was closed, or there is no such method.
        """
        return self._transport.begin(AsyncCall, method, request, timeout)

    def session(self, method: str) -> AsyncConversation:
        """Begin a bidirectional streaming call; return at once.

        Raises:
            CallError: the transport was closed, or there is no such method.
        """
        return self._transport.converse(AsyncConversation, method, None)

    async def close(self) -> None:
        """Cancel all calls, close the engine, and end its thread, without blocking the loop."""
        await in_daemon(self._transport.close)


class AsyncCall(Call):
    """A call whose responses are read in the event loop in which it was begun. One reader at a time."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._home = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[bytes | End] = asyncio.Queue()

    def __aiter__(self) -> AsyncCall:
        return self

    async def __anext__(self) -> Message:
        try:
            answer = self._taken(self._end or await self._arrived.get())
        except asyncio.CancelledError:
            self.cancel()
            raise
        if answer is None:
            raise StopAsyncIteration
        return answer

    def _deliver(self, found: bytes | End) -> None:
        with suppress(RuntimeError):  # the reader's loop is closed
            self._home.call_soon_threadsafe(self._arrived.put_nowait, found)


class AsyncConversation(AsyncCall, Conversation):
    """A bidirectional streaming call. A `headrace._transport.aio_transport.AsyncMessageChannel`."""
