"""Pings that keep connections alive: those who send them and those who take them agree."""

from __future__ import annotations

import pytest
from headrace._transport import grpc_channels
from headrace_engine.service import server as engine_server
from headrace_gateway import server as gateway_server
from headrace_gateway.engines import engine as gateway_channels

SENDERS = {
    "client": dict(grpc_channels.CHANNEL_OPTIONS),
    "gateway": dict(gateway_channels._CHANNEL_OPTIONS),
}
TAKERS = {"engine": dict(engine_server._OPTIONS), "gateway": dict(gateway_server._SERVER_OPTIONS)}


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("taker", TAKERS)
def test_bc165_no_sender_pings_more_often_than_a_server_takes(sender: str, taker: str) -> None:
    """Without data too, as through a long prefill, and while no call is open; else the server ends the connection."""
    sent, taken = SENDERS[sender], TAKERS[taker]
    assert sent["grpc.keepalive_time_ms"] > taken["grpc.http2.min_ping_interval_without_data_ms"]
    assert sent["grpc.http2.max_pings_without_data"] == 0
    assert taken["grpc.keepalive_permit_without_calls"] == 1


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("taker", TAKERS)
def test_bc167_both_ends_take_messages_of_the_same_size(sender: str, taker: str) -> None:
    """Answers; questions are bounded lower."""
    sent, taken = SENDERS[sender], TAKERS[taker]
    assert sent["grpc.max_receive_message_length"] == taken["grpc.max_send_message_length"] == 64 << 20
    assert taken["grpc.max_receive_message_length"] == 16 << 20 <= sent["grpc.max_send_message_length"]


@pytest.mark.parametrize("options", [*SENDERS.values(), *TAKERS.values()])
def test_bc164_a_vanished_peer_is_noticed_within_a_minute(options: dict[str, int]) -> None:
    """By itself gRPC waits a minute for the answer to a ping, whatever the timeout of keepalive is."""
    assert options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"] <= 60_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
