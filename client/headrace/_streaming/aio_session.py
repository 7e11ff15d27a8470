"""The tasks of a client's session in an event loop: one reads and one writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1.session_pb2 import SessionResponse
from headrace_proto.wire.transport import CallError

from headrace._base.aio_waiting import AsyncClock, Signal
from headrace._base.deadline import Deadline
from headrace._base.retry import RetryPolicy
from headrace._streaming.aio_feed import AsyncFeed
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession, refuses_sessions
from headrace._streaming.session_driver import METHOD
from headrace._streaming.subscription import Subscription, subscription_of
from headrace._transport.aio_transport import AsyncMessageChannel, AsyncTransport
from headrace._transport.transport import broke_off
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError, InternalServerError, UnavailableError

logger = logging.getLogger(__name__)


class AsyncSessionDriver:
    """Fills the readers of all queues of a client over one stream, or over a stream for each without sessions.

    The reading task starts with the first queue and ends with `close`. It opens the stream and owns it, and starts a
    writing task for each stream. A broken stream is opened again while there are queues to fill.

    The arguments are those of `SessionDriver`.
    """

    def __init__(
        self, transport: AsyncTransport, *, owner: str, client: str, policy: RetryPolicy, clock: AsyncClock
    ) -> None:
        self._transport = transport
        self._policy = policy
        self._clock = clock
        self._session = ClientSession(Recovery(policy, clock), clock, owner=owner, client=client)
        self._wake = Signal()
        self._sessions_supported = True
        self._own_error: HeadraceError | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def attach(self, feed: AsyncFeed, fallback: Callable[[], None]) -> None:
        """Start to fill a reader.

        Args:
            feed: feed of the reader.
            fallback: fills the reader without a session; called, now or later, if the server has none.
        """
        if self._closed:
            feed.stop()
        elif self._sessions_supported:
            self._add(feed, fallback)
        else:
            fallback()

    def close(self) -> None:
        """End the stream and the tasks; blocked reads raise UnavailableError."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._end()

    @property
    def ended(self) -> bool:
        """True if it was closed, or its task was cancelled, as happens when the loop ends."""
        return self._closed or (self._task is not None and (self._task.done() or self._task.cancelling() > 0))

    async def wait_closed(self) -> None:
        """Wait until the tasks have ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _add(self, feed: AsyncFeed, fallback: Callable[[], None]) -> None:
        subscription = subscription_of(feed, Recovery(self._policy, self._clock), fallback)
        feed.moved = partial(self._moved, subscription)
        self._session.add(subscription)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="headrace-reader")
        self._wake.notify_all()

    def _moved(self, subscription: Subscription) -> None:
        self._session.moved(subscription)
        if self._session.urgent:
            self._wake.notify_all()

    async def _run(self) -> None:
        try:
            # The task keeps waiting without sessions too: its cancellation is how the end of the loop is noticed.
            while True:
                await self._wait_for_work()
                await self._attempt()
        except BaseException as bug:
            if not is_fault(bug):
                raise
            # Blocked reads must get the error: if the task just died, they would wait for ever.
            logger.exception("the session failed")
            self._session.fail(InternalServerError(f"the session failed: {bug!r}"))
            self._closed = True
        finally:
            # This runs too when the loop ends before the client is closed.
            self._end()

    def _end(self) -> None:
        for subscription in self._session.subscriptions:
            subscription.reader.close()
            self._session.moved(subscription)
            subscription.changed()

    async def _wait_for_work(self) -> None:
        while not self._session.subscriptions:
            await self._clock.wait(self._wake, None)

    async def _attempt(self) -> None:
        try:
            await self._follow()
        except CallError as failure:
            await self._recover(error_from_status(failure.status))
        except HeadraceError as damage:
            await self._recover(damage)

    async def _follow(self) -> None:
        channel = self._transport.session(METHOD)
        self._session.open()
        writer = asyncio.create_task(self._write(channel), name="headrace-writer")
        try:
            async for message in channel:
                if cast(SessionResponse, message).HasField("closing"):
                    channel.half_close()
                self._session.receive(cast(SessionResponse, message))
                if self._session.urgent:
                    self._wake.notify_all()
        finally:
            # The writer is this stream's: the next one gets a writer of its own.
            writer.cancel()
            channel.cancel()
        raise broke_off("the session")

    async def _write(self, channel: AsyncMessageChannel) -> None:
        try:
            await self._send(channel)
            self._own_error = UnavailableError("the server stopped responding")
        except BaseException as bug:
            if not is_fault(bug):
                raise
            logger.exception("the session failed")
            self._own_error = InternalServerError(f"the session failed: {bug!r}")
        channel.cancel(lost=True)

    async def _send(self, channel: AsyncMessageChannel) -> None:
        """Send the session's messages until the server has been silent for too long."""
        while not self._session.silent:
            if (message := self._session.outgoing()) is not None:
                channel.send(message)
            else:
                await self._clock.wait(self._wake, self._session.wait)

    async def _recover(self, error: HeadraceError) -> None:
        error, self._own_error = self._own_error or error, None
        if refuses_sessions(error):
            self._use_fallbacks()
            return
        deadline = Deadline(self._clock, self._session.broken(error) or 0.0)
        while not deadline.passed:
            await self._clock.sleep(deadline.left() or 0.0)

    def _use_fallbacks(self) -> None:
        logger.info("the server has no sessions: each queue reads a stream of its own")
        self._sessions_supported = False
        for subscription in self._session.subscriptions:
            # Removed first: from here on the fallback alone fills the reader.
            self._session.remove(subscription)
            subscription.fallback()
