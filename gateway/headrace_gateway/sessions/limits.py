"""Limits of a session stream: seconds between pings, and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_proto.pure.limits import LEAVE_SECONDS, PING_INTERVAL, PING_TIMEOUT


@dataclass(frozen=True)
class SessionLimits:
    """The limits of sessions, on both sides of the gateway.

    Attributes:
        ping_interval: seconds between pings, of clients to the gateway and of the gateway to engines.
        ping_timeout: seconds of silence after which a session is ended.
        held_bytes: maximum bytes of encoded rows that wait for one client's session. Rows beyond are dropped, and
            read from the engine again once the client gets there.
        message_bytes: maximum bytes of an encoded message. A single row may be longer, since it cannot be split.
        leave_seconds: seconds that a client has to half-close after the `closing` message.
        reopen_seconds: pause after a stream to an engine broke; doubled up to `reopen_at_most` while reopening fails.
        reopen_at_most: longest such pause.
    """

    ping_interval: float = PING_INTERVAL
    ping_timeout: float = PING_TIMEOUT
    held_bytes: int = 8 << 20
    message_bytes: int = 1 << 20
    leave_seconds: float = LEAVE_SECONDS
    reopen_seconds: float = 0.1
    reopen_at_most: float = 2.0
