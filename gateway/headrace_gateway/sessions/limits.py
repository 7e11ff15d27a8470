"""What a session stream may take: time between signs of life, and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_proto.pure.limits import LEAVE_SECONDS, PING_INTERVAL, PING_TIMEOUT


@dataclass(frozen=True)
class SessionLimits:
    """The limits of sessions, on both sides of the gateway.

    Attributes:
        ping_interval: seconds between two pings that a client, or this gateway towards an engine, sends.
        ping_timeout: seconds of silence after which a session is ended.
        held_bytes: rows, as encoded, that one client's session may have waiting. What is beyond is dropped, and read
            from the engine again when the client has come that far.
        message_bytes: a message as encoded. A single row may be longer, since a row cannot be cut.
        leave_seconds: time that a client has to end its half once it was told that the gateway goes away.
        reopen_seconds: pause after a stream to an engine broke; doubled up to `reopen_at_most` while none opens.
        reopen_at_most: longest such pause.
    """

    ping_interval: float = PING_INTERVAL
    ping_timeout: float = PING_TIMEOUT
    held_bytes: int = 8 << 20
    message_bytes: int = 1 << 20
    leave_seconds: float = LEAVE_SECONDS
    reopen_seconds: float = 0.1
    reopen_at_most: float = 2.0
