"""One channel of one client's session: its positions, at the client and at the engine."""

from __future__ import annotations

from typing import Protocol

from headrace_proto.pure.limits import DEFAULT_WINDOW
from headrace_proto.v1 import request_pb2
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.v1.status_pb2 import Status

from headrace_gateway.engines.rewrite import readdress
from headrace_gateway.sessions.outbox import Outbox

_TERMINAL = frozenset(
    {
        request_pb2.GENERATE_STATUS_FINISHED,
        request_pb2.GENERATE_STATUS_INTERRUPTED,
        request_pb2.GENERATE_STATUS_INTERNAL_ERROR,
    }
)


class Upstream(Protocol):
    """A stream to an engine, as a reader sees it. It has channel numbers of its own."""

    engine: str
    """Name of the engine in the gateway's list."""

    def check_share(self, session: Downstream) -> None:
        """Raise CallError if a session has used up its share of the stream."""

    def attach(self, reader: Reader, from_position: int, window: int) -> int:
        """Attach a sequence for a reader. Return the channel, which the reader must detach."""

    def detach(self, channel: int) -> None:
        """Detach a channel."""

    def acknowledge(self, channel: int, position: int, window: int) -> None:
        """Set the window of a channel."""


class Downstream(Protocol):
    """A client's session, as a reader sees it."""

    outbox: Outbox
    """Rows and items that wait for the client."""

    def put_rows(self, message: wire.SessionResponse) -> None:
        """Take ownership of a message of rows of any of its channels."""

    def ended(self, channel: int) -> None:
        """Forget a channel that ended upstream."""


class Reader:
    """Forwards one sequence from an engine to a client, and flow control from the client to the engine.

    `next` is the position after the newest token put in the outbox. A reader is *parked* after rows of it were dropped:
    attached with a window of 0, with `next` at the first dropped token. It resumes with the client's next ack, through
    a new attach from `next`, since the engine does not go back within an old one.

    Args:
        attach: the client's attach.
        session: the client's session.
        upstream: the stream to the engine.

    Attributes:
        channel: in the client's session.
        handle: as sent by the client.
        index: index of the sequence in its request.
        owner: owner of the request.
        session: the client's session.
        upstream: the stream to the engine.
        upstream_channel: its current channel there.
        acked: position up to which the client has acknowledged.
        next: see above.
        parked: see above.
    """

    def __init__(self, attach: wire.Attach, session: Downstream, upstream: Upstream) -> None:
        self.channel, self.handle, self.index = attach.channel, attach.handle, attach.index
        self.owner = attach.owner
        self.session = session
        self.upstream = upstream
        self.acked = self.next = self._base = attach.from_position
        self.parked = False
        self._window = attach.window if attach.HasField("window") else DEFAULT_WINDOW
        self._open_window = self._window
        self._status = request_pb2.GENERATE_STATUS_UNSPECIFIED
        self._attach_sent = self._prefix_sent = False
        self._end: int | None = None
        # Last: from here on the stream calls this reader, and its session must detach it.
        self.upstream_channel = upstream.attach(self, self.next, self._window)

    @property
    def done(self) -> bool:
        """True if all tokens and the end were put in the outbox."""
        return self._end is not None and self.next >= self._end

    def acknowledge(self, position: int, window: int | None) -> None:
        """Apply an ack that has been checked."""
        self.acked = position
        if window is not None:
            self._window = window
        elif self._window == 0:
            self._window = self._open_window
        self._open_window = self._window or self._open_window
        if not self.parked:
            self._pass_on(self._limit)
        elif self._limit > self.next:
            self._resume()

    def park(self, position: int) -> None:
        """Stop the engine after rows from a position on were dropped, until the client acknowledges."""
        produced, self.next, self.parked = self.next, position, True
        self._pass_on(0)
        self.session.outbox.put_window(self._closed(produced))

    def on_attached(self, item: wire.Attached) -> None:
        """Forward the engine's answer to an attach. On a resume, only a status change is of interest."""
        if self._attach_sent:
            if item.status not in _TERMINAL:
                self.on_status(wire.StatusChange(status=item.status, prefix=_prefix(item)))
            return
        self._attach_sent, self._status, self._prefix_sent = True, item.status, item.HasField("prefix")
        item.channel = self.channel
        self.session.outbox.put_attached(item)

    def on_status(self, item: wire.StatusChange) -> None:
        """Forward a status change, unless the client knows it already."""
        if item.status == self._status and (self._prefix_sent or not item.HasField("prefix")):
            return
        self._status = item.status
        self._prefix_sent = self._prefix_sent or item.HasField("prefix")
        item.channel = self.channel
        self.session.outbox.put_status(item)

    def on_end(self, item: wire.SequenceEnd) -> None:
        """Forward the end of the sequence, once."""
        if self._end is not None:
            return
        self._end = item.end.position
        readdress(item, self.upstream.engine)
        item.channel = self.channel
        self.session.outbox.put_end(item)

    def on_window(self, item: wire.WindowState) -> None:
        """Forward a window state; while parked, the gateway reports its own instead."""
        item.channel = self.channel
        self.session.outbox.put_window(self._closed(item.generated_length) if self.parked else item)

    def on_error(self, status: Status) -> None:
        """Forward the failure that ends the channel."""
        readdress(status, self.upstream.engine)
        self.session.outbox.put_error(
            wire.HandleError(channel=self.channel, handle=self.handle, index=self.index, status=status)
        )
        self.session.ended(self.channel)

    @property
    def _limit(self) -> int:
        """Position up to which the client accepts tokens."""
        return self.acked + self._window

    def _pass_on(self, limit: int) -> None:
        """Send an ack with a limit upstream, never below the position from which the channel was attached."""
        position = max(self.acked, self._base)
        self.upstream.acknowledge(self.upstream_channel, position, max(0, limit - position))

    def _resume(self) -> None:
        self.parked = False
        self.session.outbox.forget_window(self.channel)
        # The new channel first: without any reader, the request's lease would begin at the engine.
        old, self._base = self.upstream_channel, self.next
        self.upstream_channel = self.upstream.attach(self, self.next, self._limit - self.next)
        self.upstream.detach(old)

    def _closed(self, produced: int) -> wire.WindowState:
        return wire.WindowState(channel=self.channel, position=self.next, limit=self.next, generated_length=produced)


def _prefix(item: wire.Attached) -> request_pb2.PrefixReuse | None:
    return item.prefix if item.HasField("prefix") else None
