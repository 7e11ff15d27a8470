"""Who can connect to secured servers, and what others are told."""

from __future__ import annotations

import grpc
import pytest
from headrace import Client
from headrace.errors import AuthError, HeadraceError
from support.servers.processes import engine_server, gateway_server

from .conftest import MODEL, Secured


def test_bc186_no_call_gets_through_without_a_key(secured: Secured) -> None:
    with secured.client() as client:
        for call in (client.list_models, lambda: client.start_request(MODEL, "Hello"), client.list_requests):
            with pytest.raises(AuthError, match="no API key was sent") as refused:
                list(call())
            assert refused.value.reason == "BAD_API_KEY"


def test_an_engine_takes_no_calls_around_its_gateway(secured: Secured) -> None:
    certificate, key = secured.client_files
    credentials = grpc.ssl_channel_credentials(secured.authority.root, key.read_bytes(), certificate.read_bytes())
    with (
        Client(secured.engine.address, credentials=credentials, api_key=secured.keys["ops"]) as client,
        pytest.raises(AuthError, match="metadata headrace-secret is missing"),
    ):
        client.list_models()


@pytest.mark.parametrize("server", ["engine", "gateway"])
def test_a_client_without_tls_learns_so(secured: Secured, server: str) -> None:
    with (
        Client(getattr(secured, server).address) as client,
        pytest.raises(AuthError, match="it speaks TLS: pass credentials") as refused,
    ):
        client.list_models()
    assert refused.value.reason == "TLS_MISMATCH"


def test_bc184_an_engine_wants_a_certificate_of_its_clients(secured: Secured) -> None:
    credentials = grpc.ssl_channel_credentials(secured.authority.root)
    with Client(secured.engine.address, credentials=credentials) as client, pytest.raises(HeadraceError):
        client.list_models(timeout=2)


def test_a_gateway_with_the_wrong_secret_says_so(secured: Secured, tmp_path) -> None:
    wrong = tmp_path / "secret"
    wrong.write_text("d" * 40)
    right = tmp_path / "right"
    right.write_text("e" * 40)
    with (
        engine_server("e1", "--secret-file", str(right)) as engine,
        gateway_server({"e1": engine.address}, "--engine-secret-file", str(wrong)) as gateway,
    ):
        event = gateway.wait_event("engine_unreachable")
        assert "is not one of this engine's" in event["problem"]
        refused = engine.wait_event("request_refused", reason="BAD_API_KEY")
        assert "d" * 40 not in str(refused) + gateway.text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--keys", "{folder}/none.toml"), "none.toml: no such file"),
        (("--engine-ca", "{folder}/none.pem"), "none.pem: no such file"),
        (("--engine-cert", "{folder}/a"), "--engine-key is missing"),
        (("--engine-secret-file", "{folder}/none"), "none: no such file"),
        (("--tls-cert", "{folder}/a"), "--tls-key is missing"),
    ],
)
def test_a_gateway_does_not_start_half_secured(tmp_path, arguments: tuple[str, ...], why: str) -> None:
    import subprocess
    import sys

    line = [argument.format(folder=tmp_path) for argument in arguments]
    command = [sys.executable, "-m", "headrace_gateway", "--listen", "127.0.0.1:0", "--engine", "e1=127.0.0.1:1", *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (1, 2)
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
