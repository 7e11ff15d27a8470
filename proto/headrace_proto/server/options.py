"""gRPC options of both servers and their connections."""

from __future__ import annotations

import resource

from headrace_proto.pure.limits import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES
from headrace_proto.server.intake import FLOW_OPTIONS

_HOUR_MS = 3_600_000

CONNECTION_OPTIONS = (
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # otherwise gRPC waits a minute for the answer to a ping
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of connections on either side: message sizes, and how soon a lost peer is detected."""

HANDSHAKE_SECONDS = 30
"""Seconds that a new connection has for its TLS handshake and its first frame."""

MAX_CONNECTIONS = 8192
"""Maximum connections of a server, and at most three eighths of the files that it may open: HTTP may have half."""


def _most_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files * 3 // 8)


SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second process on the port must fail, not share it
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients ping through a long prefill
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.max_allowed_incoming_connections", _most_connections()),
    ("grpc.max_connection_age_ms", _HOUR_MS),
    ("grpc.max_connection_age_grace_ms", _HOUR_MS),
    *FLOW_OPTIONS,
)
"""Options of a server."""
