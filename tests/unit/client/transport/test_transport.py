"""Addresses, options, and the seam."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from headrace import Client, InvalidRequestError, UnavailableError
from headrace._transport import transport as seam
from headrace._transport.grpc_channels import CHANNEL_OPTIONS
from headrace._transport.methods import CONVERSATIONS, METHODS
from headrace_proto.pure.addresses import parse_addresses, plain_reason
from headrace_proto.pure.limits import MAX_REQUEST_BYTES
from headrace_proto.v1 import engine_service_pb2
from headrace_proto.wire.transport import CallError
from support.clocks.waiting import LIMIT
from support.deployment.distributions import ROOT
from support.scripted.server import ScriptedServer

SESSION = "headrace.v1.RequestService/Session"


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("localhost:7070", ["localhost:7070"]),
        ("gw1:7070,gw2:7070", ["gw1:7070", "gw2:7070"]),
        ("10.0.0.1:1 , [::1]:65535", ["10.0.0.1:1", "[::1]:65535"]),
        ("head_race-1.svc.cluster.local.:80", ["head_race-1.svc.cluster.local.:80"]),
        ("unix:/run/headrace.sock", ["unix:/run/headrace.sock"]),
    ],
)
def test_addresses(text: str, targets: list[str]) -> None:
    assert parse_addresses(text) == targets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:",
        ":7070",
        "localhost:0",
        "localhost:65536",
        "localhost:http",
        "localhost:７０７０",
        "::1:7070",
        "[::1:7070",
        "[host]:7070",
        "http://localhost:7070",
        "gw1:7070,",
        "a b:7070",
        "unix:",
        "nowhere:",
    ],
)
def test_an_address_that_cannot_be_parsed_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        Client(text)


def test_the_bad_one_of_several_addresses_is_named() -> None:
    with pytest.raises(ValueError, match='address "gw2" in "gw1:7070,gw2" cannot be parsed'):
        Client("gw1:7070,gw2")
    with pytest.raises(ValueError, match='"gw1:7070" stands twice'):
        Client("gw1:7070,gw1:7070")


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="api_kay"):
        Client("localhost:7070", api_kay="secret")


def test_the_api_key_travels_in_the_metadata(server: ScriptedServer) -> None:
    seen: list[Any] = []

    class Look(grpc.ServerInterceptor):
        def intercept_service(self, go_on: Any, details: grpc.HandlerCallDetails) -> Any:
            seen.append(dict(details.invocation_metadata).get("authorization"))
            return go_on(details)

    watched = grpc.server(threadpool(), interceptors=[Look()], options=[("grpc.so_reuseport", 0)])
    port = watched.add_insecure_port("127.0.0.1:0")
    watched.start()
    for options in ({"api_key": "k1"}, {}):
        with Client(f"127.0.0.1:{port}", **options) as client, pytest.raises(InvalidRequestError) as caught:
            client.server_info()
        # The server knows no such method.
        assert caught.value.reason == "UNIMPLEMENTED"
    watched.stop(None).wait()
    assert seen == ["Bearer k1", None]


def threadpool() -> Any:
    """Threads for a server."""
    return ThreadPoolExecutor(2)


def test_bc167_messages_above_4_mib_pass_both_ways(client: Client, server: ScriptedServer) -> None:
    text = "x" * 6_000_000
    server.expect("Tokenize", lambda request: engine_service_pb2.TokenizeResponse(rendered_text=request.text))
    assert client.tokenize("smol", text).rendered_text == text


def test_bc167_a_message_above_the_limit_is_refused_locally(client: Client) -> None:
    text = "x" * (MAX_REQUEST_BYTES + 1)
    with pytest.raises(
        InvalidRequestError, match=rf"the message has \d+ bytes, more than the limit of {MAX_REQUEST_BYTES}"
    ):
        client.tokenize("smol", text)
    with pytest.raises(InvalidRequestError):
        client.start_request("smol", text)


def test_channel_settings_bound_a_dead_peer_and_a_return() -> None:
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"] <= 30_000
    assert options["grpc.max_reconnect_backoff_ms"] <= 2_000
    assert options["grpc.max_receive_message_length"] == 64 * 2**20
    assert options["grpc.max_send_message_length"] == MAX_REQUEST_BYTES


def test_the_method_tables_hold_every_call() -> None:
    contracts = "".join(path.read_text() for path in (ROOT / "proto/headrace/v1").glob("*_service.proto"))
    assert sorted(name.rpartition("/")[2] for name in [*METHODS, *CONVERSATIONS]) == sorted(
        re.findall(r"^  rpc (\w+)", contracts, re.MULTILINE)
    )
    assert METHODS["headrace.v1.RequestService/GeneratedElements"].streams
    assert not METHODS["headrace.v1.RequestService/StartRequest"].streams
    assert list(CONVERSATIONS) == [SESSION]
    assert SESSION not in METHODS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"retries": 3}, 'Client() has no keyword "retries"; did you mean retry?'),
        ({"apikey": "k"}, 'Client() has no keyword "apikey"; did you mean api_key?'),
        ({"zzz": 3}, 'Client() has no keyword "zzz"'),
    ],
)
def test_an_unknown_keyword_names_the_client(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError) as caught:
        Client("localhost:7070", **given)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("details", "target", "plain"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:7: Failed to connect to remote "
            "host: Connection refused",
            "[::1]:7",
            "Failed to connect to remote host: Connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7: connection refused",
            "localhost:7",
            "127.0.0.1:7: connection refused",
        ),
        (
            "recvmsg:Connection reset by peer [ipv6:%5Bfe80::1%5D:7]",
            "a:7",
            "recvmsg:Connection reset by peer [[fe80::1]:7]",
        ),
        ("Socket closed", "a:7", "Socket closed"),
    ],
)
def test_unreached_addresses_are_reported_as_people_write_them(details: str, target: str, plain: str) -> None:
    assert plain_reason(details, target) == plain


def test_a_call_that_its_client_cut_is_not_the_servers_cancel() -> None:
    server = ScriptedServer().start()
    try:
        made = seam.open_transport(server.address, {})
        go = threading.Event()
        server.expect("GetServerInfo", lambda _: go.wait(LIMIT) and engine_service_pb2.GetServerInfoResponse())
        closer = threading.Thread(target=lambda: (server.wait_for("GetServerInfo"), made.close()))
        closer.start()
        with pytest.raises(CallError, match="the client was closed"):
            made.unary(
                "headrace.v1.EngineService/GetServerInfo", engine_service_pb2.GetServerInfoRequest(), timeout=LIMIT
            )
        go.set()
        closer.join(LIMIT)
    finally:
        server.stop()


def test_a_closed_grpc_transport_says_so() -> None:
    made = seam.open_transport("127.0.0.1:1", {})
    made.close()
    request = engine_service_pb2.GetServerInfoRequest()
    with pytest.raises(CallError, match="closed"):
        made.unary("headrace.v1.EngineService/GetServerInfo", request, timeout=1)
    client = Client(made)
    with pytest.raises(UnavailableError) as caught:
        client.server_info()
    assert caught.value.reason == "CLIENT_CLOSED"


def test_the_client_needs_no_grpc_before_a_grpc_address_is_used() -> None:
    """In-process use imports no gRPC from here."""
    code = "import sys, headrace, headrace.types; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_client_depends_on_grpc_and_protobuf_only() -> None:
    lines = [*(importlib.metadata.requires("headrace") or ()), *(importlib.metadata.requires("headrace-proto") or ())]
    wanted = {re.split("[<=>]", line)[0] for line in lines if "extra" not in line}
    assert wanted == {"headrace-proto", "grpcio", "protobuf"}


def test_a_misspelled_inprocess_is_answered_with_the_right_word() -> None:
    with pytest.raises(ValueError, match='did you mean "inprocess:"'):
        Client("inproc:")
