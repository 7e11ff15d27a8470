"""The gateway in containers with TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.deployment.containers import Stack
from support.servers.certificates import Authority

pytestmark = [pytest.mark.compose, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stack(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("tls")
    readable(folder, authority)
    stack = Stack("headrace-tls", "docker-compose.yml", "deploy/compose/tls.yml", HEADRACE_TLS=str(folder))
    stack.compose("down", "--volumes", "--timeout", "1")
    try:
        stack.compose("up", "--detach", "--no-build")
        yield stack
    finally:
        print(stack.compose("logs", "--no-color", "--tail", "50"))
        stack.compose("down", "--volumes", "--timeout", "1")


def readable(folder: Path, authority: Authority) -> None:
    """Write the files of a gateway, which its user in the container can read."""
    key, certificate = authority.pair("DNS:localhost,IP:127.0.0.1")
    for name, content in {"ca.pem": authority.root, "gateway.pem": certificate, "gateway-key.pem": key}.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
    for part in (folder, *folder.parents):
        if part.owner() != "root" or not part.stat().st_mode & 0o005:
            part.chmod(part.stat().st_mode | 0o055)
        if part.name == "tmp":
            break


def test_grpc_and_http_are_encrypted_and_the_probe_sees_it(stack: Stack, authority: Authority) -> None:
    def healthy() -> bool:
        state = stack.docker("inspect", "gateway", "--format", "{{.State.Health.Status}}").strip()
        return state == "healthy"

    wait_until(healthy, "the gateway does not become healthy", 180)
    credentials = grpc.ssl_channel_credentials(authority.root)
    with Client(stack.address, credentials=credentials, api_key=stack.key) as client:
        assert [engine.reachable for engine in client.server_info().engines] == [True]
    context = ssl.create_default_context(cadata=authority.root.decode())
    with urlopen(f"https://{stack.http}/healthz", context=context, timeout=LIMIT) as answer:
        assert answer.status == 200
