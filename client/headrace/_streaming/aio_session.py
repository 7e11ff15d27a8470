"""Runs a client's session in an event loop: one task that reads and one that says what is to be said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
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
    """Reads for all queues of a client over one stream; where there are no sessions, lets each read in its own way.

    The tasks begin with the first queue. The stream stays as long as the client; one that breaks is opened again once
    there is something to read.

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
        self._offered = True
        self._verdict: HeadraceError | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def attach(self, feed: AsyncFeed, instead: Callable[[], None]) -> None:
        """Begins to fill a reader.

        Args:
            feed: the reader.
            instead: called where there are no sessions, now or later.
        """
        if self._closed:
            feed.stop()
        elif self._offered:
            self._add(feed, instead)
        else:
            instead()

    def close(self) -> None:
        """Ends the stream and the tasks; whoever reads hears of it."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._end()

    @property
    def ended(self) -> bool:
        """Whether it was closed, or its task was cancelled, as a loop does at its end."""
        return self._closed or (self._task is not None and (self._task.done() or self._task.cancelling() > 0))

    async def wait_closed(self) -> None:
        """Waits until the tasks have ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _add(self, feed: AsyncFeed, instead: Callable[[], None]) -> None:
        subscription = subscription_of(feed, Recovery(self._policy, self._clock), instead)
        feed.moved = lambda: self._moved(subscription)
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
            # Where there are no sessions it waits on: that it is cancelled tells that the loop ends.
            while True:
                await self._wait_for_work()
                await self._attempt()
        except BaseException as bug:
            if not is_fault(bug):
                raise
            # Whoever waits in Get() must hear of it; a task that dies silently would leave it there for ever.
            logger.exception("the session failed")
            self._session.fail(InternalServerError(f"the session failed: {bug!r}"))
            self._closed = True
        finally:
            # Also where the loop ends before the client does.
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
            writer.cancel()
            channel.cancel()
        raise broke_off("the session")

    async def _write(self, channel: AsyncMessageChannel) -> None:
        try:
            await self._say(channel)
            self._verdict = UnavailableError("the server stopped responding")
        except BaseException as bug:
            if not is_fault(bug):
                raise
            logger.exception("the session failed")
            self._verdict = InternalServerError(f"the session failed: {bug!r}")
        channel.cancel(lost=True)

    async def _say(self, channel: AsyncMessageChannel) -> None:
        """Says what is to be said, until the server is silent for too long."""
        while not self._session.silent:
            if (message := self._session.outgoing()) is not None:
                channel.send(message)
            else:
                await self._clock.wait(self._wake, self._session.wait)

    async def _recover(self, error: HeadraceError) -> None:
        error, self._verdict = self._verdict or error, None
        if refuses_sessions(error):
            self._do_without()
            return
        deadline = Deadline(self._clock, self._session.broken(error) or 0.0)
        while not deadline.passed:
            await self._clock.sleep(deadline.left() or 0.0)

    def _do_without(self) -> None:
        logger.info("the server has no sessions: each queue reads a stream of its own")
        self._offered = False
        for subscription in self._session.subscriptions:
            self._session.remove(subscription)
            subscription.instead()
