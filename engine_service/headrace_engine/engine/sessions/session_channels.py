"""The interface of a session's channels, and channels that could not be attached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace_proto.pure.limits import MAX_CHANNELS, MAX_HANDLE_BYTES
from headrace_proto.pure.used_numbers import UsedNumbers

from headrace_engine.engine.sessions.session_update import HandleError, SessionUpdate
from headrace_engine.errors import HeadraceError, InvalidArgument


class Timers(Protocol):
    """A clock with timers, such as an event loop."""

    def time(self) -> float:
        """Return monotonic time, in seconds."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call back after `delay` seconds; return a handle with a `cancel` method."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A channel's number, and the sequence it was attached to."""

    channel: int
    handle: str
    index: int


class Channel(Protocol):
    """A channel of a session."""

    @property
    def attachment(self) -> Attachment:
        """The channel's number, and the sequence it was attached to."""

    @property
    def share(self) -> int:
        """Sequences that it reads, of those that all sessions share."""

    @property
    def done(self) -> bool:
        """True if everything was sent and nothing new can come."""

    def write_to(self, update: SessionUpdate) -> bool:
        """Add news to an update that has space left. True: not all of it fitted."""

    def ack(self, position: int, window: int | None, path: str) -> None:
        """Acknowledge tokens up to a position."""

    def close(self) -> None:
        """Stop following the log; pending news can still be written."""


class Refused:
    """A channel that could not be attached. It reports that once."""

    done = False
    share = 0

    def __init__(self, attachment: Attachment, error: HeadraceError) -> None:
        self.attachment = attachment
        self._error = error

    def write_to(self, update: SessionUpdate) -> bool:
        """Add the failure."""
        update.refuse(HandleError(self.attachment.channel, self.attachment.handle, self.attachment.index, self._error))
        return False

    def ack(self, position: int, window: int | None, path: str) -> None:
        """Do nothing: the client has not read the failure yet."""

    def close(self) -> None:
        """Do nothing: it follows no log."""


def check_attach(attachment: Attachment, path: str, numbers: UsedNumbers, channels: int) -> None:
    """Check an attach, and mark its channel number as used.

    Args:
        path: path of the attach in its message.
        numbers: channel numbers used in this stream.
        channels: number of channels of the session.

    Raises:
        InvalidArgument: the number is 0 or was used, there are too many channels, or the handle is too long.
    """
    if not numbers.use(attachment.channel):
        text = f"= {attachment.channel} was used before or is 0; allowed: each number from 1 once in a stream"
        raise InvalidArgument.field(f"{path}.channel", text)
    if channels == MAX_CHANNELS:
        raise InvalidArgument.field(path, f"exceeds the limit of {MAX_CHANNELS} channels in one session")
    length = len(attachment.handle.encode())
    if length > MAX_HANDLE_BYTES:
        raise InvalidArgument.field(f"{path}.handle", f"has {length} bytes; allowed: {MAX_HANDLE_BYTES}")
