"""Limits that both ends of a connection observe."""

from __future__ import annotations

MAX_REQUEST_BYTES = 16 << 20
"""Maximum bytes of a message to a server: a prompt of 4 million tokens as text, or of 5 million as ids, and a config of
1 MiB. gRPC reads a message before it can be refused, so this is the most that each call costs."""

MAX_ANSWER_BYTES = 64 << 20
"""Maximum bytes of a response: the ids, texts and bytes of a whole prompt."""

MAX_PARTS_BYTES = 256 << 10
"""Maximum bytes of the tools that calls are held to, or of a structural tag: they have many schemas."""

DEFAULT_WINDOW = 4096
"""Tokens that a session may send beyond the acknowledged position, unless the attach says otherwise."""

MAX_CHANNELS = 65_536
"""Maximum channels of a session with an engine at a time."""

MAX_HANDLE_BYTES = 1024
"""Maximum bytes of a handle; it is returned in a HandleError, and messages are bounded."""

PING_INTERVAL = 10.0
"""Seconds after which the client of a session should send a ping."""

PING_TIMEOUT = 30.0
"""Seconds of silence that end a session."""

LEAVE_SECONDS = 4.0
"""Seconds that a client has to half-close a session after the server's `closing` message."""

PORTION = 64
"""Attaches, detaches and acks of one message after which other tasks have a turn."""
