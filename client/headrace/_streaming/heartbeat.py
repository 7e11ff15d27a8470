"""Keep-alive of a session: when to ping, and when to give the server up."""

from __future__ import annotations

from headrace_proto.pure.limits import PING_INTERVAL, PING_TIMEOUT
from headrace_proto.v1 import session_pb2

from headrace._base.retry import Time


class Heartbeat:
    """Pings and timeouts of one stream.

    Args:
        clock: source of time.
    """

    def __init__(self, clock: Time) -> None:
        self._clock = clock
        self._interval, self._timeout = PING_INTERVAL, PING_TIMEOUT
        self._number = 0
        self._heard = self._pinged = clock.monotonic()

    def agree(self, opened: session_pb2.SessionOpened) -> None:
        """Use the server's interval and timeout where it sends them."""
        self._interval = opened.ping_interval.ToNanoseconds() / 1e9 or PING_INTERVAL
        self._timeout = opened.ping_timeout.ToNanoseconds() / 1e9 or PING_TIMEOUT

    def heard(self) -> None:
        """Record that a message arrived."""
        self._heard = self._clock.monotonic()

    @property
    def due(self) -> bool:
        """True if it is time to ping."""
        return self._clock.monotonic() >= self._pinged + self._interval

    def ping(self) -> session_pb2.Ping:
        """Return the next ping, to be sent now."""
        self._number += 1
        self._pinged = self._clock.monotonic()
        return session_pb2.Ping(number=self._number)

    @property
    def silent(self) -> bool:
        """True if no message arrived within the timeout."""
        return self._clock.monotonic() >= self._heard + self._timeout

    @property
    def next_time(self) -> float:
        """Time of the clock at which `due` or `silent` may become true."""
        return min(self._pinged + self._interval, self._heard + self._timeout)
