"""Rows that wait for a client on one channel of its session."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import Message
from headrace_proto.v1 import session_pb2 as wire

from headrace_gateway.sessions.rows import Row

_FRAME_BYTES = 6  # the tag of an item in a message, and its length at most


def framed_bytes(item: Message) -> int:
    """Return the bytes that an item adds to a message, at most."""
    return item.ByteSize() + _FRAME_BYTES


@dataclass(slots=True)
class Waiting:
    """Rows and items of one channel, in the order in which they are sent."""

    attached: wire.Attached | None = None
    rows: list[Row] = field(default_factory=list)
    status: wire.StatusChange | None = None
    end: wire.SequenceEnd | None = None
    error: wire.HandleError | None = None
    window: wire.WindowState | None = None

    def row_bytes(self) -> int:
        """Return the bytes of its rows."""
        return sum(row.size for row in self.rows)

    def item_bytes(self) -> int:
        """Return the bytes that its items add to a message, at most."""
        items = (self.attached, self.status, self.end, self.error, self.window)
        return sum(framed_bytes(item) for item in items if item is not None)

    def move_items(self, message: wire.SessionResponse) -> None:
        """Append its items to a message."""
        if self.attached is not None:
            message.attached.append(self.attached)
        if self.status is not None:
            message.status_changes.append(self.status)
        if self.end is not None:
            message.ends.append(self.end)
        if self.error is not None:
            message.errors.append(self.error)
        if self.window is not None:
            message.windows.append(self.window)
