"""Options of gRPC's that both servers and their connections have."""

from __future__ import annotations

from headrace_proto.pure.limits import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES
from headrace_proto.server.intake import FLOW_OPTIONS

_HOUR_MS = 3_600_000

CONNECTION_OPTIONS = (
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what counts: gRPC waits a minute for the answer to a ping otherwise
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Of connections of either side: sizes, and how soon a peer that is gone is noticed."""

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second process on the port must fail, not share it
    *CONNECTION_OPTIONS,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients ping through a long prefill
    ("grpc.max_connection_age_ms", _HOUR_MS),
    ("grpc.max_connection_age_grace_ms", _HOUR_MS),
    *FLOW_OPTIONS,
)
"""Of a server."""
