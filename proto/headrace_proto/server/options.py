"""gRPC options of both servers and their connections."""

from __future__ import annotations

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

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second process on the port must fail, not share it
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients ping through a long prefill
    ("grpc.max_connection_age_ms", _HOUR_MS),
    ("grpc.max_connection_age_grace_ms", _HOUR_MS),
    *FLOW_OPTIONS,
)
"""Options of a server."""
