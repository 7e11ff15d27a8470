"""A gateway that asks its callers for certificates, over gRPC and HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx2 as httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.clocks.waiting import LIMIT
from support.servers.certificates import Authority
from support.servers.processes import Server, gateway_server

NAMES = "DNS:localhost,IP:127.0.0.1"
Files = tuple[Path, Path] | None


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("trusted"))


@pytest.fixture(scope="module")
def callers(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """Certificates that callers present."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    return {"right": authority.files(NAMES, "right"), "foreign": stranger.files(NAMES, "foreign"), "none": None}


@pytest.fixture(scope="module")
def gateway(authority: Authority) -> Iterator[Server]:
    certificate, key = authority.files(NAMES)
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(authority.file))
    with gateway_server({"e1": "127.0.0.1:1"}, *tls, "--http", "127.0.0.1:0") as server:
        yield server


def by_grpc(gateway: Server, authority: Authority, files: Files) -> bool:
    """True if a call is answered: one of health, which asks for no key."""
    own = (None, None) if files is None else (files[1].read_bytes(), files[0].read_bytes())
    with grpc.secure_channel(gateway.address, grpc.ssl_channel_credentials(authority.root, *own)) as channel:
        code = grpc.StatusCode.OK
        try:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=LIMIT)
        except grpc.RpcError as error:
            code = error.code()
    return {grpc.StatusCode.NOT_FOUND: True, grpc.StatusCode.UNAVAILABLE: False}[code]


def by_http(gateway: Server, authority: Authority, files: Files) -> bool:
    context = ssl.create_default_context(cafile=str(authority.file))
    if files is not None:
        context.load_cert_chain(*files)
    url = f"https://{gateway.wait_event('listening')['http']}/healthz"
    try:
        return httpx.get(url, verify=context, timeout=LIMIT).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("caller", ["right", "foreign", "none"])
@pytest.mark.parametrize("way", [by_grpc, by_http], ids=["grpc", "http"])
def test_only_certificates_of_the_authority_get_in(gateway, authority, callers, caller: str, way) -> None:
    assert way(gateway, authority, callers[caller]) == (caller == "right")
