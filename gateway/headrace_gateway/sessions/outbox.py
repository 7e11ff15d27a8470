"""What waits to be sent to one client's session: by channel, bounded in all, taken in messages of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message
from headrace_proto.v1 import session_pb2 as wire
from headrace_proto.wire.session_rows import Columns

from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.sessions.rows import Row, add_row, rows_of

M = TypeVar("M", bound=Message)

_FRAME_BYTES = 64  # what columns take beside their entries


@dataclass(slots=True)
class _Waiting:
    """What waits of one channel. In this order it is told."""

    attached: wire.Attached | None = None
    rows: list[Row] = field(default_factory=list)
    status: wire.StatusChange | None = None
    end: wire.SequenceEnd | None = None
    error: wire.HandleError | None = None
    window: wire.WindowState | None = None

    def row_bytes(self) -> int:
        return sum(row.size for row in self.rows)

    def item_bytes(self) -> int:
        items = (self.attached, self.status, self.end, self.error, self.window)
        return sum(item.ByteSize() for item in items if item is not None)


class Outbox:
    """Rows and items that wait for one client.

    A client that keeps up gets each step as it came. For one that does not, rows of a channel are joined, statuses and
    windows replace older ones, so what waits is bounded by its channels, and its rows by `held_bytes`.

    Args:
        limits: bytes of rows that may wait, and bytes of a message.
        on_more: called whenever something was put in.

    Attributes:
        held: bytes of rows that wait.
    """

    def __init__(self, limits: SessionLimits, on_more: Callable[[], None]) -> None:
        self.held = 0
        self._limits = limits
        self._on_more = on_more
        self._opened: wire.SessionOpened | None = None
        self._pong: int | None = None
        self._closing = False
        self._fresh: wire.SessionResponse | None = None
        self._channels: OrderedDict[int, _Waiting] = OrderedDict()  # A dict walks over what left its front.

    def __bool__(self) -> bool:
        own = self._closing or self._opened is not None or self._pong is not None
        return own or bool(self._channels) or self._fresh is not None

    @property
    def channels(self) -> int:
        """Channels of which something waits besides a step just put in."""
        return len(self._channels)

    def put_rows(self, message: wire.SessionResponse) -> dict[int, int]:
        """Adds new tokens.

        Args:
            message: has a step and nothing else; from now on it belongs to the outbox, which may send it as it is.

        Returns:
            The channels whose rows had to be dropped, each with the position of the first one dropped.
        """
        self._outdate_windows(message.step.channels)
        size = message.ByteSize()
        if self.held == 0 and size + _FRAME_BYTES <= self._limits.message_bytes:
            self._fresh, self.held = message, size
        else:
            self._dissolve()
            self._pile_up(message.step)
        self._on_more()
        return self._shed() if self.held > self._limits.held_bytes else {}

    def put_attached(self, item: wire.Attached) -> None:
        """Adds an attach that succeeded."""
        self._of(item.channel).attached = _own(item)

    def put_status(self, item: wire.StatusChange) -> None:
        """Adds a change of a sequence's status; what it does not tell stays as told before."""
        waiting = self._of(item.channel)
        if waiting.status is None:
            waiting.status = _own(item)
        else:
            waiting.status.MergeFrom(item)

    def put_end(self, item: wire.SequenceEnd) -> None:
        """Adds the end of a sequence."""
        self._of(item.channel).end = _own(item)

    def put_error(self, item: wire.HandleError) -> None:
        """Adds the end of a channel."""
        self._of(item.channel).error = _own(item)

    def put_window(self, item: wire.WindowState) -> None:
        """Tells how a reader stands to its window."""
        self._of(item.channel).window = _own(item)

    def put_opened(self, item: wire.SessionOpened) -> None:
        """Adds the first thing that a session is told."""
        self._opened = item
        self._on_more()

    def put_pong(self, number: int) -> None:
        """Answers a ping; the last one will do."""
        self._pong = number
        self._on_more()

    def put_closing(self) -> None:
        """Adds the last thing that a session is told."""
        self._closing = True
        self._on_more()

    def forget(self, channel: int) -> None:
        """Tells nothing more of a channel that was detached, but for what a step just put in has of it."""
        waiting = self._channels.pop(channel, None)
        if waiting is not None:
            self.held -= waiting.row_bytes()

    def forget_window(self, channel: int) -> None:
        """Takes back what waits of a window that has opened since."""
        self._outdate_windows((channel,))

    def take(self) -> wire.SessionResponse | None:
        """The next message to send; None if nothing waits."""
        if not self:
            return None
        if self._fresh is not None and self._channels and not self._fit_in_one():
            self._dissolve()  # an attach may not come after its rows
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
        """A message with the step put in last, if there is one, and with the opening."""
        if self._fresh is None:
            return wire.SessionResponse(opened=self._opened)
        message, self._fresh = self._fresh, None
        self.held = 0  # Nothing else that waits has rows.
        if self._opened is not None:
            message.opened.CopyFrom(self._opened)
        return message

    def _fit_in_one(self) -> bool:
        """All items that wait fit in one message with the step put in last, and with the opening."""
        room = self._limits.message_bytes - self.held - _FRAME_BYTES
        room -= self._opened.ByteSize() if self._opened is not None else 0
        for waiting in self._channels.values():
            room -= waiting.item_bytes()
            if room < 0:
                return False
        return room >= 0

    def _fill(self, message: wire.SessionResponse) -> None:
        """Moves what waits into the message, channel after channel in the order in which they began to wait."""
        room = self._limits.message_bytes - _FRAME_BYTES - message.ByteSize()
        while self._channels and room > 0:
            channel = next(iter(self._channels))
            waiting = self._channels[channel]
            if waiting.rows:
                room = self._fill_rows(message, channel, waiting, room)
            room -= waiting.item_bytes()
            if waiting.rows or (room < 0 and not _empty(message)):
                return
            _fill_items(message, waiting)
            del self._channels[channel]

    def _fill_rows(self, message: wire.SessionResponse, channel: int, waiting: _Waiting, room: int) -> int:
        """Moves rows of a channel, its attach before them; returns what room is left."""
        if waiting.attached is not None:
            message.attached.append(waiting.attached)
            room -= waiting.attached.ByteSize()
            waiting.attached = None
        moved = 0
        for row in waiting.rows:
            if row.size > room and message.step.channels:
                break
            add_row(message.step, channel, row)
            self.held -= row.size
            room -= row.size
            moved += 1
        del waiting.rows[:moved]
        return room

    def _of(self, channel: int) -> _Waiting:
        self._on_more()
        return self._channels.setdefault(channel, _Waiting())

    def _dissolve(self) -> None:
        """Treats the step put in last as rows that wait."""
        if self._fresh is not None:
            fresh, self._fresh, self.held = self._fresh, None, 0
            self._pile_up(fresh.step)

    def _pile_up(self, step: wire.StepBatch) -> None:
        """Puts rows where each channel's others wait."""
        longest = self._limits.message_bytes // 8
        for channel, row in rows_of(Columns(step)):
            kept = self._channels.setdefault(channel, _Waiting()).rows
            before = kept[-1].size if kept else 0
            if kept and kept[-1].join(row, longest):
                self.held += kept[-1].size - before
            else:
                kept.append(row)
                self.held += row.size

    def _outdate_windows(self, channels: Iterable[int]) -> None:
        """What waits about these channels' windows is no longer true."""
        if not self._channels:
            return
        for channel in channels:
            waiting = self._channels.get(channel)
            if waiting is not None:
                waiting.window = None

    def _shed(self) -> dict[int, int]:
        """Drops the last rows of the channels that hold most, until half of the room is free."""
        self._dissolve()
        heaviest = sorted(self._channels.items(), key=lambda item: -item[1].row_bytes())
        dropped: dict[int, int] = {}
        for channel, waiting in heaviest:
            while waiting.rows and self.held > self._limits.held_bytes // 2:
                row, waiting.window = waiting.rows.pop(), None  # What is told of the window comes after these rows.
                dropped[channel] = row.position
                self.held -= row.size
        return dropped


def _own(item: M) -> M:
    """A copy: a part would keep all of the message that it came in."""
    own = type(item)()
    own.CopyFrom(item)
    return own


def _empty(message: wire.SessionResponse) -> bool:
    return not message.ListFields()


def _fill_items(message: wire.SessionResponse, waiting: _Waiting) -> None:
    if waiting.attached is not None:
        message.attached.append(waiting.attached)
    if waiting.status is not None:
        message.status_changes.append(waiting.status)
    if waiting.end is not None:
        message.ends.append(waiting.end)
    if waiting.error is not None:
        message.errors.append(waiting.error)
    if waiting.window is not None:
        message.windows.append(waiting.window)
