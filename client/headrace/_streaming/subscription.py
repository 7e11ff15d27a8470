"""One sequence that is read over a session: its channel and its window."""

from __future__ import annotations

from collections.abc import Callable

from headrace_proto.v1 import request_pb2, session_pb2, status_pb2

from headrace._streaming.feed import BaseFeed
from headrace._streaming.reader import SequenceReader
from headrace._streaming.reads import WINDOW
from headrace._streaming.recovery import Recovery, as_loss
from headrace._values.details import Details
from headrace._values.wire_errors import error_from_status
from headrace.errors import HeadraceError


class Subscription:
    """A reader and its attachment to a stream of the session.

    The server may send up to a limit, which is `window` tokens beyond what was read, also if a new stream resumes
    amid unread tokens.

    Args:
        reader: the sequence reader; its feed's lock guards the subscription too.
        recovery: decides when to attach again.
        handle: handle of the request.
        index: index of the sequence.
        request_id: id of the request, for errors.
        changed: called after the reader has changed.
        fallback: fills the reader without a session; for servers that have none.
        window: maximum number of unread tokens.

    Attributes:
        worthwhile: number of tokens by which an ack must open the window to be worth a message.
        channel: channel number in the current stream; None: not attached.
        attach_at: time of the next attempt to attach; None: none is pending.
    """

    def __init__(
        self,
        reader: SequenceReader,
        recovery: Recovery,
        *,
        handle: str,
        index: int,
        request_id: str,
        changed: Callable[[], None],
        fallback: Callable[[], None],
        window: int = WINDOW,
    ) -> None:
        self.reader = reader
        self.handle = handle
        self.index = index
        self.request_id = request_id
        self.changed = changed
        self.fallback = fallback
        self.channel: int | None = None
        self.attach_at: float | None = None
        self._recovery = recovery
        self.worthwhile = max(1, window // 2)
        self._most = window
        self._acked = 0
        self._limit = 0

    def attach(self, channel: int) -> session_pb2.Attach:
        """Return the message that attaches a channel at the reader's position."""
        self.channel, self.attach_at = channel, None
        self._acked, self._limit = self.reader.position, self._goal
        return session_pb2.Attach(
            channel=channel,
            handle=self.handle,
            index=self.index,
            from_position=self._acked,
            window=self._window,
        )

    def ack(self) -> session_pb2.Ack:
        """Return the message that acknowledges what was read and moves the window."""
        self._acked = max(self._acked, self.reader.window_start)
        self._limit = self._goal
        return session_pb2.Ack(channel=self.channel or 0, position=self._acked, window=self._window)

    @property
    def gain(self) -> int:
        """Number of tokens by which an ack would open the window; below 1 it is useless."""
        return self.reader.window_start + self._most - self._limit

    def attached(self, fact: session_pb2.Attached) -> None:
        """Apply the server's confirmation. Raises InternalServerError if it is not at the reader's position."""
        self._recovery.reached()
        self.reader.begin(fact.position, fact.checksum)
        self._learn(fact.generated_length, fact.status, fact.prefix if fact.HasField("prefix") else None)

    def take(self, position: int, ids: list[int], text: str, after: int, details: Details | None) -> None:
        """Append a row. Raises InternalServerError if it does not continue at the reader's position."""
        self._recovery.progressed()
        self.reader.append(position, ids, text, after, details)

    def end(self, record: request_pb2.EndRecord) -> None:
        """Apply the end record. Raises InternalServerError if more tokens have arrived."""
        self._recovery.progressed()
        self.reader.finish(record)

    def apply_window(self, state: session_pb2.WindowState) -> None:
        """Apply a WindowState: the server has stopped at a limit, which may be below ours."""
        self._limit = min(self._limit, state.limit)
        self._learn(state.generated_length)

    def apply_status(self, change: session_pb2.StatusChange) -> None:
        """Apply a change of status, and the prefix-cache use that may come with it."""
        self._learn(status=change.status, prefix=change.prefix if change.HasField("prefix") else None)

    def _learn(self, length: int = 0, status: int = 0, prefix: request_pb2.PrefixReuse | None = None) -> None:
        self.reader.observe(request_pb2.SequenceInfo(generated_length=length, status=status, prefix=prefix))  # type: ignore[arg-type]

    def refused(self, status: status_pb2.Status, now: float) -> None:
        """Schedule another attempt after a failed attachment, or fail the reader if the error is final."""
        # The server has detached it already.
        self.channel = None
        error = as_loss(error_from_status(status, request_id=self.request_id, handle=self.handle), self.reader)
        delay = self._recovery.delay(error)
        if delay is None:
            self.reader.fail(error)
            return
        if self._recovery.too_long:
            self.reader.interrupt(error)
        self.attach_at = now + delay

    def fail(self, error: HeadraceError) -> None:
        """Fail the reader."""
        self.reader.fail(error.about(self.request_id))

    @property
    def _goal(self) -> int:
        return self.reader.window_start + self._most

    @property
    def _window(self) -> int:
        # Unread tokens of an earlier stream may precede the position at which this one began.
        return max(0, self._limit - self._acked)


def subscription_of(feed: BaseFeed, recovery: Recovery, fallback: Callable[[], None]) -> Subscription:
    """Return the subscription of a feed; the arguments are those of `Subscription`."""
    return Subscription(
        feed.reader,
        recovery,
        handle=feed.current,
        index=feed.index,
        request_id=feed.request_id,
        changed=feed.touched,
        fallback=fallback,
    )
