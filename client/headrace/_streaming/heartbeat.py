"""Signs of life of a session: when to ping, and when the server is taken for lost."""

from __future__ import annotations

from headrace_proto.pure.limits import PING_INTERVAL, PING_TIMEOUT
from headrace_proto.v1 import session_pb2

from headrace._base.retry import Time


class Heartbeat:
    """Counts the pings of one stream.

    Args:
        clock: time.
    """

    def __init__(self, clock: Time) -> None:
        self._clock = clock
        self._interval, self._timeout = PING_INTERVAL, PING_TIMEOUT
        self._number = 0
        self._heard = self._pinged = clock.monotonic()

    def agree(self, opened: session_pb2.SessionOpened) -> None:
        """Takes the server's times where it gives them."""
        self._interval = opened.ping_interval.ToNanoseconds() / 1e9 or PING_INTERVAL
        self._timeout = opened.ping_timeout.ToNanoseconds() / 1e9 or PING_TIMEOUT

    def heard(self) -> None:
        """The server said something."""
        self._heard = self._clock.monotonic()

    @property
    def due(self) -> bool:
        """Whether to ping now."""
        return self._clock.monotonic() >= self._pinged + self._interval

    def ping(self) -> session_pb2.Ping:
        """The next ping."""
        self._number += 1
        self._pinged = self._clock.monotonic()
        return session_pb2.Ping(number=self._number)

    @property
    def silent(self) -> bool:
        """Whether the server said nothing for too long."""
        return self._clock.monotonic() >= self._heard + self._timeout

    @property
    def next_time(self) -> float:
        """When to look again."""
        return min(self._pinged + self._interval, self._heard + self._timeout)
