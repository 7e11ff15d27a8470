"""The channels of a session, whatever stands behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace_proto.pure.limits import MAX_CHANNELS, MAX_HANDLE_BYTES
from headrace_proto.pure.used_numbers import UsedNumbers

from headrace_engine.engine.sessions.session_update import HandleError, SessionUpdate
from headrace_engine.errors import HeadraceError, InvalidArgument


class Timers(Protocol):
    """What tells the time and calls back. An event loop does."""

    def time(self) -> float:
        """Seconds that only grow."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call back after some seconds; what is returned has a `cancel`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A channel and what it was attached to."""

    channel: int
    handle: str
    index: int


class Channel(Protocol):
    """What a session asks for news."""

    @property
    def place(self) -> Place:
        """Its number, and what it was attached to."""

    @property
    def done(self) -> bool:
        """Everything was told, and nothing new can come."""

    def tell(self, update: SessionUpdate) -> bool:
        """Add what is new to an update that has room. True: not all of it fitted."""

    def ack(self, position: int, window: int | None, path: str) -> None:
        """Its reader came this far."""

    def close(self) -> None:
        """Follow what is read no more; what was not told yet still can be."""


class Refused:
    """A channel that could not be attached. It says so once."""

    done = False

    def __init__(self, place: Place, error: HeadraceError) -> None:
        self.place = place
        self._error = error

    def tell(self, update: SessionUpdate) -> bool:
        """Add the failure."""
        update.refuse(HandleError(self.place.channel, self.place.handle, self.place.index, self._error))
        return False

    def ack(self, position: int, window: int | None, path: str) -> None:
        """Nothing: its client does not know yet."""

    def close(self) -> None:
        """Nothing is held."""


def check_attach(place: Place, path: str, numbers: UsedNumbers, channels: int) -> None:
    """Take the number of a place that is to be attached.

    Args:
        path: of the attach in its message.
        numbers: that the stream has used.
        channels: that the session has.

    Raises:
        InvalidArgument: the number is 0 or was used, there are too many channels, or the handle is none.
    """
    if not numbers.use(place.channel):
        text = f"= {place.channel} was used before or is 0; allowed: each number from 1 once in a stream"
        raise InvalidArgument.field(f"{path}.channel", text)
    if channels == MAX_CHANNELS:
        raise InvalidArgument.field(path, f"exceeds the limit of {MAX_CHANNELS} channels in one session")
    length = len(place.handle.encode())
    if length > MAX_HANDLE_BYTES:
        raise InvalidArgument.field(f"{path}.handle", f"has {length} bytes; allowed: {MAX_HANDLE_BYTES}")
