"""The protocol of a client's session, without I/O: which messages to send, and what to do with received ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace_proto.v1 import session_pb2

from headrace._base.retry import Time
from headrace._streaming.heartbeat import Heartbeat
from headrace._streaming.recovery import Recovery
from headrace._streaming.session_rows import rows
from headrace._streaming.subscription import Subscription
from headrace.errors import HeadraceError, InvalidRequestError

_REFUSALS = frozenset({"NOT_SUPPORTED", "UNIMPLEMENTED"})


Take = Callable[[Subscription, Any], None]


def refuses_sessions(error: HeadraceError) -> bool:
    """Return whether an error means that the server does not support sessions."""
    return isinstance(error, InvalidRequestError) and error.reason in _REFUSALS


class ClientSession:
    """The subscriptions of a client, over one stream after the other.

    A driver opens a stream, calls `open`, sends the messages of `outgoing`, passes received ones to `receive`, and
    calls `broken` when the stream ends. On the next stream every sequence resumes at its reader's position, so that
    each gets its tokens once and in order. It is not thread-safe: its driver guards it.

    Args:
        recovery: decides when to open a stream again.
        clock: source of time.
        owner: owner of the requests.
        client: name and version of the client, for the server's logs.
    """

    def __init__(self, recovery: Recovery, clock: Time, *, owner: str = "", client: str = "") -> None:
        self._recovery = recovery
        self._clock = clock
        self._owner = owner
        self._client = client
        self._subscriptions: dict[Subscription, None] = {}
        self._by_channel: dict[int, Subscription] = {}
        self._refused: dict[Subscription, None] = {}
        self._moved: dict[Subscription, None] = {}
        self._pending = session_pb2.SessionRequest()
        self._urgent = False
        self._heartbeat: Heartbeat | None = None
        self._last_channel = 0

    # Calls of readers.

    def add(self, subscription: Subscription) -> None:
        """Add a sequence to read."""
        self._subscriptions[subscription] = None
        if self._heartbeat is not None:
            self._attach(subscription)

    def moved(self, subscription: Subscription) -> None:
        """Acknowledge or detach a sequence whose reader was read or needs no more results."""
        if subscription not in self._subscriptions:
            return
        if subscription.reader.settled or subscription.reader.adrift:
            self.remove(subscription)
        elif subscription.channel is not None and (gain := subscription.gain) > 0:
            self._moved[subscription] = None
            self._urgent |= gain >= subscription.worthwhile

    def remove(self, subscription: Subscription) -> None:
        """Stop reading a sequence, and detach it."""
        self._refused.pop(subscription, None)
        self._moved.pop(subscription, None)
        self._subscriptions.pop(subscription, None)
        if subscription.channel is not None:
            del self._by_channel[subscription.channel]
            self._pending.detach.append(subscription.channel)
            self._urgent = True
            subscription.channel = None

    @property
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, oldest first."""
        return list(self._subscriptions)

    # Calls of the driver.

    def open(self) -> None:
        """Begin a new stream: attach all subscriptions to it."""
        self._heartbeat = Heartbeat(self._clock)
        self._last_channel = 0
        self._pending = session_pb2.SessionRequest(options=session_pb2.SessionOptions(client=self._client))
        self._urgent = True
        for subscription in self._subscriptions:
            if subscription not in self._refused:
                self._attach(subscription)

    def outgoing(self) -> session_pb2.SessionRequest | None:
        """Return the message to send now; None: there is none."""
        if self._heartbeat is None:
            return None
        self._attach_refused()
        if self._heartbeat.due:
            self._pending.ping.CopyFrom(self._heartbeat.ping())
            self._urgent = True
        if not self._urgent:
            return None
        self._urgent = False
        self._pending.acks.extend(subscription.ack() for subscription in self._moved)
        self._moved.clear()
        message, self._pending = self._pending, session_pb2.SessionRequest()
        return message if message.ByteSize() else None

    @property
    def urgent(self) -> bool:
        """True if the driver should call `outgoing` now."""
        return self._urgent

    @property
    def wait(self) -> float | None:
        """Seconds until the driver should check `outgoing` and `silent` again; None: after the next event."""
        if self._heartbeat is None:
            return None
        times = [one.attach_at for one in self._refused if one.attach_at is not None]
        return max(0.0, min([self._heartbeat.next_time, *times]) - self._clock.monotonic())

    @property
    def silent(self) -> bool:
        """True if the server has been silent for too long, so that the stream is to be given up."""
        return self._heartbeat is not None and self._heartbeat.silent

    def receive(self, message: session_pb2.SessionResponse) -> None:
        """Apply a received message.

        Raises:
            InternalServerError: it is malformed as a whole; the stream is to be given up.
        """
        if self._heartbeat is None:
            return
        self._heartbeat.heard()
        if message.HasField("opened"):
            self._heartbeat.agree(message.opened)
            self._urgent = True
        touched: dict[Subscription, None] = {}
        self._apply(((one.channel, Subscription.attached, one) for one in message.attached), touched)
        if message.HasField("step"):
            self._take_rows(message.step, touched)
        self._apply(_later_facts(message), touched)
        for error in message.errors:
            if (subscription := self._by_channel.pop(error.channel, None)) is not None:
                touched[subscription] = None
                self._refuse(subscription, error)
        if touched or message.HasField("pong"):
            self._recovery.progressed()
        for subscription in touched:
            self.moved(subscription)
            subscription.changed()

    def broken(self, error: HeadraceError) -> float | None:
        """Detach all subscriptions from a stream that ended or could not be opened.

        Returns:
            Seconds until another one should be opened; None: the failure is final, and all readers have failed.
        """
        self._heartbeat = None
        # Channels end with their stream; positions are the readers', and the next stream resumes there.
        self._by_channel.clear()
        self._moved.clear()
        for subscription in self._subscriptions:
            subscription.channel = None
        delay = self._recovery.delay(error)
        if delay is None:
            self.fail(error)
        elif self._recovery.too_long:
            for subscription in self._subscriptions:
                subscription.reader.interrupt(error.about(subscription.request_id))
                subscription.changed()
        elif self._subscriptions:
            self._recovery.log_failure(error)
        return delay

    def fail(self, error: HeadraceError) -> None:
        """Fail all readers and remove their subscriptions."""
        for subscription in self.subscriptions:
            subscription.fail(error)
            self.remove(subscription)
            subscription.changed()

    # A channel that is unknown was detached while the message was in transit.

    def _apply(self, facts: Iterable[tuple[int, Take, Any]], touched: dict[Subscription, None]) -> None:
        for channel, take, fact in facts:
            if (subscription := self._by_channel.get(channel)) is not None:
                touched[subscription] = None
                try:
                    take(subscription, fact)
                except HeadraceError as damage:
                    self._damaged(subscription, damage)

    def _take_rows(self, step: session_pb2.StepBatch, touched: dict[Subscription, None]) -> None:
        by_channel = self._by_channel
        for channel, position, ids, text, after, details in rows(step):
            if (subscription := by_channel.get(channel)) is not None:
                touched[subscription] = None
                try:
                    subscription.take(position, ids, text, after, details)
                except HeadraceError as damage:
                    self._damaged(subscription, damage)

    def _damaged(self, subscription: Subscription, damage: HeadraceError) -> None:
        subscription.fail(damage)
        self.remove(subscription)

    def _attach(self, subscription: Subscription) -> None:
        self._last_channel += 1
        attach = subscription.attach(self._last_channel)
        attach.owner = self._owner
        self._by_channel[self._last_channel] = subscription
        self._pending.attach.append(attach)
        self._urgent = True

    def _attach_refused(self) -> None:
        now = self._clock.monotonic()
        due = [one for one in self._refused if one.attach_at is not None and one.attach_at <= now]
        for subscription in due:
            del self._refused[subscription]
            self._attach(subscription)

    def _refuse(self, subscription: Subscription, error: session_pb2.HandleError) -> None:
        self._moved.pop(subscription, None)
        subscription.refused(error.status, self._clock.monotonic())
        if subscription.attach_at is None:
            self.remove(subscription)
        else:
            self._refused[subscription] = None
            self._urgent = True


def _later_facts(message: session_pb2.SessionResponse) -> Iterator[tuple[int, Take, Any]]:
    """Yield (channel, method, argument) for what a message says about channels after its rows, in order."""
    for change in message.status_changes:
        yield change.channel, Subscription.apply_status, change
    for end in message.ends:
        yield end.channel, Subscription.end, end.end
    for window in message.windows:
        yield window.channel, Subscription.apply_window, window
