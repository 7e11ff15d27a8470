"""Outbox of one client's session: rows and items by channel, bounded in total, sent in messages of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.message import Message
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.wire.session_rows import Columns

from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.rows import add_row, rows_of
from headrace_gateway.sessions.waiting import Waiting, framed_bytes

M = TypeVar("M", bound=Message)

_COLUMNS_BYTES = 64  # overhead of columns besides their entries


class Outbox:
    """Rows and items that wait for one client.

    Owns all that is put in: rows' messages are handed over by the caller, other items are copied, as they are parts of
    messages for several clients. `take` hands a finished message over to the session's writer.

    A client that keeps up gets each step as it came. For one that does not, rows of a channel are joined, and statuses
    and windows replace older ones, so items are bounded by the number of channels, and rows by `held_bytes`.

    Args:
        limits: bytes of rows that may wait, and bytes per message.
        on_more: called whenever something was queued.

    Attributes:
        held: bytes of waiting rows.
    """

    def __init__(self, limits: SessionLimits, on_more: Callable[[], None]) -> None:
        self.held = 0
        self._limits = limits
        self._on_more = on_more
        self._opened: wire.SessionOpened | None = None
        self._pong: int | None = None
        self._closing = False
        self._fresh: wire.SessionResponse | None = None
        self._channels: OrderedDict[int, Waiting] = OrderedDict()  # a dict would scan the entries deleted at its front

    def __bool__(self) -> bool:
        own = self._closing or self._opened is not None or self._pong is not None
        return own or bool(self._channels) or self._fresh is not None

    @property
    def channels(self) -> int:
        """Number of channels with waiting rows or items, not counting a step just queued."""
        return len(self._channels)

    def put_rows(self, message: wire.SessionResponse) -> dict[int, int]:
        """Queue new tokens.

        Args:
            message: a step and nothing else. The outbox takes ownership, and may send the message as it is.

        Returns:
            The channels whose rows were dropped, each with the position of the first dropped token.
        """
        self._drop_windows(message.step.channels)
        size = message.ByteSize()
        if self.held == 0 and size + _COLUMNS_BYTES <= self._limits.message_bytes:
            self._fresh, self.held = message, size
        else:
            self._queue_fresh()
            self._queue_rows(message.step)
        self._on_more()
        return self._drop_rows() if self.held > self._limits.held_bytes else {}

    def put_attached(self, item: wire.Attached) -> None:
        """Queue an attach that succeeded."""
        self._of(item.channel).attached = _own(item)

    def put_status(self, item: wire.StatusChange) -> None:
        """Queue a status change, merged into one that still waits."""
        waiting = self._of(item.channel)
        if waiting.status is None:
            waiting.status = _own(item)
        else:
            waiting.status.MergeFrom(item)

    def put_end(self, item: wire.SequenceEnd) -> None:
        """Queue the end of a sequence."""
        self._of(item.channel).end = _own(item)

    def put_error(self, item: wire.HandleError) -> None:
        """Queue the failure that ends a channel."""
        self._of(item.channel).error = _own(item)

    def put_window(self, item: wire.WindowState) -> None:
        """Queue the state of a channel's window, replacing one that still waits."""
        self._of(item.channel).window = _own(item)

    def put_opened(self, item: wire.SessionOpened) -> None:
        """Queue the first message of the session."""
        self._opened = item
        self._on_more()

    def put_pong(self, number: int) -> None:
        """Queue the answer to a ping, replacing one that still waits."""
        self._pong = number
        self._on_more()

    def put_closing(self) -> None:
        """Queue the final `closing` message."""
        self._closing = True
        self._on_more()

    def forget(self, channel: int) -> None:
        """Drop what waits for a detached channel, except its rows in a step just queued."""
        waiting = self._channels.pop(channel, None)
        if waiting is not None:
            self.held -= waiting.row_bytes()

    def forget_window(self, channel: int) -> None:
        """Drop the waiting window state of a channel, as the window has opened since."""
        self._drop_windows((channel,))

    def take(self) -> wire.SessionResponse | None:
        """Return the next message to send; None if nothing waits."""
        if not self:
            return None
        if self._fresh is not None and self._channels and not self._fit_in_one():
            self._queue_fresh()  # an attach must not come after its rows
        message = self._begun()
        if self._pong is not None:
            message.pong.number = self._pong
        self._opened = self._pong = None
        if self._channels:
            self._fill(message)
        if self._closing and not self._channels:
            self._closing = False
            message.closing.SetInParent()
        return None if _empty(message) else message

    def _begun(self) -> wire.SessionResponse:
        """Begin a message with the step queued last, if there is one, and with `opened`."""
        if self._fresh is None:
            return wire.SessionResponse(opened=self._opened)
        message, self._fresh = self._fresh, None
        self.held = 0  # no other waiting channel has rows
        if self._opened is not None:
            message.opened.CopyFrom(self._opened)
        return message

    def _fit_in_one(self) -> bool:
        """True if all waiting items fit into one message with the step queued last."""
        left = self._limits.message_bytes - self.held - _COLUMNS_BYTES
        left -= framed_bytes(self._opened) if self._opened is not None else 0
        for waiting in self._channels.values():
            left -= waiting.item_bytes()
            if left < 0:
                return False
        return left >= 0

    def _fill(self, message: wire.SessionResponse) -> None:
        """Move waiting rows and items into the message, channel by channel, longest waiting first."""
        left = self._limits.message_bytes - _COLUMNS_BYTES - message.ByteSize()
        while self._channels and left > 0:
            channel = next(iter(self._channels))
            waiting = self._channels[channel]
            if waiting.rows:
                left = self._fill_rows(message, channel, waiting, left)
            left -= waiting.item_bytes()
            if waiting.rows or (left < 0 and not _empty(message)):
                return
            waiting.move_items(message)
            del self._channels[channel]

    def _fill_rows(self, message: wire.SessionResponse, channel: int, waiting: Waiting, left: int) -> int:
        """Move rows of a channel, after its attach. Return the bytes left."""
        if waiting.attached is not None:
            message.attached.append(waiting.attached)
            left -= framed_bytes(waiting.attached)
            waiting.attached = None
        moved = 0
        for row in waiting.rows:
            if row.size > left and message.step.channels:
                break
            add_row(message.step, channel, row)
            self.held -= row.size
            left -= row.size
            moved += 1
        del waiting.rows[:moved]
        return left

    def _of(self, channel: int) -> Waiting:
        self._on_more()
        return self._channels.setdefault(channel, Waiting())

    def _queue_fresh(self) -> None:
        """Queue the rows of the step queued last by channel."""
        if self._fresh is not None:
            fresh, self._fresh, self.held = self._fresh, None, 0
            self._queue_rows(fresh.step)

    def _queue_rows(self, step: wire.StepBatch) -> None:
        """Append rows to the waiting rows of each channel."""
        longest = self._limits.message_bytes // 8
        for channel, row in rows_of(Columns(step)):
            kept = self._channels.setdefault(channel, Waiting()).rows
            before = kept[-1].size if kept else 0
            if kept and kept[-1].join(row, longest):
                self.held += kept[-1].size - before
            else:
                kept.append(row)
                self.held += row.size

    def _drop_windows(self, channels: Iterable[int]) -> None:
        """Drop the waiting window states of these channels."""
        if not self._channels:
            return
        for channel in channels:
            waiting = self._channels.get(channel)
            if waiting is not None:
                waiting.window = None

    def _drop_rows(self) -> dict[int, int]:
        """Drop the last rows of the channels with the most bytes, until half of the capacity is free."""
        self._queue_fresh()
        heaviest = sorted(self._channels.items(), key=lambda item: -item[1].row_bytes())
        dropped: dict[int, int] = {}
        for channel, waiting in heaviest:
            while waiting.rows and self.held > self._limits.held_bytes // 2:
                row, waiting.window = waiting.rows.pop(), None  # its window state comes after these rows
                dropped[channel] = row.position
                self.held -= row.size
        return dropped


def _own(item: M) -> M:
    """Copy an item: a reference would keep alive the whole message that it came in."""
    own = type(item)()
    own.CopyFrom(item)
    return own


def _empty(message: wire.SessionResponse) -> bool:
    return not message.ListFields()
