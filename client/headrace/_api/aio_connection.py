"""Calls with retries over a transport in an event loop, for all methods of the asynchronous client."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from google.protobuf.message import Message
from headrace_proto.wire.transport import CallError, client_closed

from headrace._api.connection import BaseConnection, check_timeout, client_name
from headrace._base.aio_tasks import Tasks
from headrace._base.aio_waiting import AsyncClock, HomeLoop
from headrace._base.attempts import Attempts
from headrace._base.fork import check_process, current_process
from headrace._base.retry import RetryPolicy
from headrace._streaming.aio_session import AsyncSessionDriver
from headrace._transport.aio_transport import AsyncMessageStream, AsyncTransport
from headrace._values.wire_errors import error_from_status

Answer = TypeVar("Answer", bound=Message)


class AsyncConnection(BaseConnection):
    """A transport with its session, its open requests and its tasks.

    The arguments are those of `Connection`. It owns all tasks of the client: `close` awaits the cleanups, then cancels
    and awaits the others.

    Attributes:
        home: the client's event loop.
        pumps: tasks that fill readers without a session.
        moves: tasks that hand requests over to other engines.
        starts: tasks that start requests.
        cleanups: tasks that release requests which their callers no longer need.
    """

    _transport: AsyncTransport

    def __init__(
        self,
        transport: AsyncTransport,
        *,
        timeout: float | None,
        owner: str,
        policy: RetryPolicy,
        handover: bool,
        clock: AsyncClock,
    ) -> None:
        super().__init__(timeout=timeout, owner=owner, policy=policy, handover=handover)
        self.clock = clock
        self.home = HomeLoop()
        self.pumps = Tasks()
        self.moves = Tasks()
        self.starts = Tasks()
        self.cleanups = Tasks()
        self.session = AsyncSessionDriver(transport, owner=owner, client=client_name(), policy=policy, clock=clock)
        self._transport = transport
        self._process = current_process()
        dropped = partial(_abandon, self.session, transport)
        self._finalizer = weakref.finalize(self, self.home.submit, dropped)
        self._finalizer.atexit = False

    async def call(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        *,
        timeout: float | None,
        request_id: str = "",
        handle: str = "",
        before_retry: Callable[[int], None] | None = None,
        policy: RetryPolicy | None = None,
    ) -> Answer:
        """Return the response to a call, as `Connection.call`. Cancelling it ends the call."""
        self._prepare(request)
        attempts = Attempts(policy or self.policy, self.clock, check_timeout(timeout))
        while True:
            asked = self.address(request, handle)
            try:
                return cast(Answer, await self._transport.unary(method, request, timeout=attempts.left))
            except CallError as failure:
                error, next_address = (
                    self.failed(failure, request_id=request_id, handle=handle, asked=asked),
                    failure.instead,
                )
            await self.clock.sleep(attempts.pause(error, next_address))
            if before_retry is not None:
                before_retry(attempts.failures)

    def stream(self, method: str, request: Message, *, timeout: float | None = None) -> AsyncMessageStream:
        """Open a streaming call, without retries. Iterating raises CallError."""
        self._prepare(request)
        return self._transport.stream(method, request, timeout=timeout)

    @property
    def ending(self) -> bool:
        """True if it is closed or its loop is ending, so that no new task would be awaited."""
        return self.session.ended or self.closed

    async def close(self) -> None:
        """Close the connection; blocked reads raise UnavailableError."""
        self.home.enter()
        try:
            await self.cleanups.wait()
        finally:
            self._finalizer.detach()
            for feed in self.requests.feeds():
                feed.stop()
            self.session.close()
            self.pumps.cancel()
            self.moves.cancel()
            self.starts.cancel()
            await self.session.wait_closed()
            await self.pumps.wait()
            await self.moves.wait()
            await self.starts.wait()
            await self._transport.close()

    def _prepare(self, request: Message) -> None:
        check_process(self._process)
        self.home.enter()
        if self.closed:
            raise error_from_status(client_closed())
        self.sign(request)


_abandoned = Tasks()
"""Tasks that close the transports of dropped clients; nothing else refers to them."""


def _abandon(session: AsyncSessionDriver, transport: AsyncTransport) -> None:
    ended = session.ended
    session.close()
    if not ended:
        _abandoned.spawn(transport.close(), "headrace-close")
