"""The session of a client, without any input or output: what to say to the server, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """Whether a server says that it has no sessions at all."""
    return isinstance(error, InvalidRequestError) and error.reason in _REFUSALS


class ClientSession:
    """All sequences that a client reads, over one stream after the other.

    A driver opens a stream, calls `open`, sends what `outgoing` answers, passes what comes to `receive`, and tells with
    `broken` that it ended. On the next stream every sequence goes on from where its reader is, so that each gets
    its tokens once and in order. It is not safe for several threads by itself.

    Args:
        recovery: decides when to open a stream again.
        clock: time.
        owner: whose requests they are.
        client: name and version, for the server's logs.
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

    # What those who read want.

    def add(self, subscription: Subscription) -> None:
        """Reads one more sequence."""
        self._subscriptions[subscription] = None
        if self._heartbeat is not None:
            self._attach(subscription)

    def moved(self, subscription: Subscription) -> None:
        """Its reader was read, or wants no more."""
        if subscription not in self._subscriptions:
            return
        if subscription.reader.settled:
            self.remove(subscription)
        elif subscription.channel is not None and (gain := subscription.gain) > 0:
            self._moved[subscription] = None
            self._urgent |= gain >= subscription.worthwhile

    def remove(self, subscription: Subscription) -> None:
        """Reads a sequence no more."""
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
        """What is read, oldest first."""
        return list(self._subscriptions)

    # What the driver of the stream does.

    def open(self) -> None:
        """A stream begins: everything is attached there."""
        self._heartbeat = Heartbeat(self._clock)
        self._last_channel = 0
        self._pending = session_pb2.SessionRequest(options=session_pb2.SessionOptions(client=self._client))
        self._urgent = True
        for subscription in self._subscriptions:
            if subscription not in self._refused:
                self._attach(subscription)

    def outgoing(self) -> session_pb2.SessionRequest | None:
        """What is to be said now; None: nothing."""
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
        """Whether to look at `outgoing` and `wait` now."""
        return self._urgent

    @property
    def wait(self) -> float | None:
        """Seconds after which to look at `outgoing` and `silent` again; None: only when something happened."""
        if self._heartbeat is None:
            return None
        times = [one.attach_at for one in self._refused if one.attach_at is not None]
        return max(0.0, min([self._heartbeat.next_time, *times]) - self._clock.monotonic())

    @property
    def silent(self) -> bool:
        """Whether the server said nothing for so long that the stream is to be given up."""
        return self._heartbeat is not None and self._heartbeat.silent

    def receive(self, message: session_pb2.SessionResponse) -> None:
        """Takes one message.

        Raises:
            InternalServerError: it makes no sense as a whole; the stream is to be given up.
        """
        if self._heartbeat is None:
            return
        self._heartbeat.heard()
        if message.HasField("opened"):
            self._heartbeat.agree(message.opened)
            self._urgent = True
        touched: dict[Subscription, None] = {}
        for channel, take, fact in _facts(message):
            # Unknown channels were detached while this was on its way.
            if (subscription := self._by_channel.get(channel)) is not None:
                touched[subscription] = None
                self._take(subscription, take, fact)
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
        """The stream ended, or could not be opened.

        Returns:
            Seconds after which to open another; None: the failure is final, and so it is for every reader.
        """
        self._heartbeat = None
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
            self._recovery.tell(error)
        return delay

    def fail(self, error: HeadraceError) -> None:
        """Nothing more can come for any reader."""
        for subscription in self.subscriptions:
            subscription.fail(error)
            self.remove(subscription)
            subscription.changed()

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

    def _take(self, subscription: Subscription, take: Take, fact: Any) -> None:
        try:
            take(subscription, fact)
        except HeadraceError as damage:
            subscription.fail(damage)
            self.remove(subscription)

    def _refuse(self, subscription: Subscription, error: session_pb2.HandleError) -> None:
        self._moved.pop(subscription, None)
        subscription.refused(error.status, self._clock.monotonic())
        if subscription.attach_at is None:
            self.remove(subscription)
        else:
            self._refused[subscription] = None
            self._urgent = True


def _facts(message: session_pb2.SessionResponse) -> Iterator[tuple[int, Take, Any]]:
    """What a message says about channels, in the order in which it is to be applied."""
    for attached in message.attached:
        yield attached.channel, Subscription.attached, attached
    if message.HasField("step"):
        for channel, part in rows(message.step):
            yield channel, Subscription.take, part
    for change in message.status_changes:
        yield change.channel, Subscription.turn, change
    for end in message.ends:
        yield end.channel, Subscription.end, end.end
    for window in message.windows:
        yield window.channel, Subscription.hold, window
