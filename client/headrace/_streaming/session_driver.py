"""The threads of a client's session: one reads and one writes, for any number of queues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

from headrace_proto.pure.faults import is_fault
from headrace_proto.v1.session_pb2 import SessionResponse
from headrace_proto.wire.transport import CallError, MessageChannel, SessionTransport, Transport, client_closed

from headrace._base.deadline import Deadline
from headrace._base.retry import Clock, RetryPolicy
from headrace._streaming.feed import Feed
from headrace._streaming.recovery import Recovery
from headrace._streaming.session import ClientSession, refuses_sessions
from headrace._streaming.subscription import Subscription, subscription_of
from headrace._transport.transport import broke_off
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError, InternalServerError, UnavailableError

METHOD = "headrace.v1.RequestService/Session"

logger = logging.getLogger(__name__)


class SessionDriver:
    """Fills the readers of all queues of a client over one stream, or over a stream for each without sessions.

    The threads start with the first queue and end with `close`. The reading thread opens the stream and owns it; the
    writing thread sends on it, and cancels it when the server is silent. A broken stream is opened again while there
    are queues to fill.

    Args:
        transport: transport that opens streams.
        owner: owner of the requests.
        client: name and version of the client, for the server's logs.
        policy: policy for opening broken streams again.
        clock: source of time.
    """

    def __init__(self, transport: Transport, *, owner: str, client: str, policy: RetryPolicy, clock: Clock) -> None:
        # Guards the session, the readers of its feeds, and all that changes below. The stream is read and written
        # without it. Reentrant: dropping the last queue under the lock may finalize the client, which closes this.
        self.lock = threading.RLock()
        self._transport = transport if isinstance(transport, SessionTransport) else None
        self._policy = policy
        self._clock = clock
        self._session = ClientSession(Recovery(policy, clock), clock, owner=owner, client=client)
        self._wake = threading.Condition(self.lock)
        self._channel: MessageChannel | None = None
        self._own_error: HeadraceError | None = None
        self._started = False
        self._closed = False

    def attach(self, feed: Feed, fallback: Callable[[], None]) -> None:
        """Start to fill a reader.

        Args:
            feed: feed of the reader.
            fallback: fills the reader without a session; called, now or later, if the server has none.
        """
        with self.lock:
            if self._closed:
                feed.reader.close()
                return
            if self._transport is not None:
                self._add(feed, fallback)
                return
        fallback()

    def close(self) -> None:
        """End the stream and the threads; blocked reads raise UnavailableError."""
        with self.lock:
            self._closed = True
            channel = self._channel
            self._wake.notify_all()
        if channel is not None:
            channel.cancel()

    def _add(self, feed: Feed, fallback: Callable[[], None]) -> None:
        subscription = subscription_of(feed, Recovery(self._policy, self._clock), fallback)
        feed.moved = partial(self._moved, subscription)
        self._session.add(subscription)
        self._start()
        self._wake.notify_all()

    def _moved(self, subscription: Subscription) -> None:
        self._session.moved(subscription)
        if self._session.urgent:
            self._wake.notify_all()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for name, run in (("headrace-reader", self._read), ("headrace-writer", self._write)):
                threading.Thread(target=self._guard, args=(run,), name=name, daemon=True).start()

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as bug:
            if not is_fault(bug):
                raise
            # Blocked reads must get the error: if the thread just died, they would wait for ever.
            logger.exception("the session failed")
            with self.lock:
                self._session.fail(InternalServerError(f"the session failed: {bug!r}"))
            self.close()

    # The reading thread.

    def _read(self) -> None:
        while (transport := self._wait_for_work()) is not None:
            try:
                self._follow(transport)
            except CallError as failure:
                self._recover(error_from_status(failure.status))
            except HeadraceError as damage:
                self._recover(damage)
        with self.lock:
            for subscription in self._session.subscriptions:
                subscription.reader.close()
                self._session.moved(subscription)
                subscription.changed()

    def _wait_for_work(self) -> SessionTransport | None:
        """Wait until there are readers to fill, and return the transport; None when the thread is to end."""
        with self.lock:
            while self._transport is not None and not (self._closed or self._session.subscriptions):
                self._clock.wait(self._wake, None)
            return None if self._closed else self._transport

    def _follow(self, transport: SessionTransport) -> None:
        channel = transport.session(METHOD)
        try:
            self._begin(channel)
            for message in channel:
                if cast(SessionResponse, message).HasField("closing"):
                    channel.half_close()
                with self.lock:
                    self._session.receive(cast(SessionResponse, message))
                    if self._session.urgent:
                        self._wake.notify_all()
        finally:
            channel.cancel()
        raise broke_off("the session")

    def _begin(self, channel: MessageChannel) -> None:
        with self.lock:
            if self._closed:
                # `close` found no stream to cancel.
                raise CallError(client_closed())
            self._channel = channel
            self._session.open()
            self._wake.notify_all()

    def _recover(self, error: HeadraceError) -> None:
        with self.lock:
            self._channel = None
            error, self._own_error = self._own_error or error, None
            if refuses_sessions(error):
                self._use_fallbacks()
            elif not self._closed:
                self._pause(self._session.broken(error))

    def _pause(self, delay: float | None) -> None:
        deadline = Deadline(self._clock, delay or 0.0)
        while not (self._closed or deadline.passed):
            self._clock.wait(self._wake, deadline.left())

    def _use_fallbacks(self) -> None:
        logger.info("the server has no sessions: each queue reads a stream of its own")
        self._transport = None
        for subscription in self._session.subscriptions:
            # Removed first: from here on the fallback alone fills the reader.
            self._session.remove(subscription)
            subscription.fallback()
        self._wake.notify_all()

    # The writing thread.

    def _write(self) -> None:
        while (action := self._next_action()) is not None:
            action()

    def _next_action(self) -> Callable[[], None] | None:
        """Wait for the next action on the stream, to be done without the lock; None when the thread is to end."""
        with self.lock:
            while self._transport is not None and not self._closed:
                channel = self._channel
                if channel is None:
                    self._clock.wait(self._wake, None)
                elif self._session.silent:
                    return self._give_up(channel)
                elif (message := self._session.outgoing()) is not None:
                    return partial(channel.send, message)
                else:
                    self._clock.wait(self._wake, self._session.wait)
            return None

    def _give_up(self, channel: MessageChannel) -> Callable[[], None]:
        self._channel = None
        # The reading thread, which owns the stream, finds it cancelled, and reports this error instead.
        self._own_error = UnavailableError("the server stopped responding")
        return partial(channel.cancel, lost=True)
