"""TLS handshakes of HTTP within their limits, to a gateway in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from headrace_gateway.access.access import Access
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http import handshakes
from headrace_gateway.http.server import HttpServer
from headrace_proto.pure.addresses import Address
from headrace_proto.server.tls import Certificates
from support.clocks.waiting import LIMIT, ends
from support.servers.certificates import Authority

GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def serving(authority: Authority, client_authorities: Path | None = None) -> AsyncIterator[Address]:
    """Run a server without services; give where it listens."""
    certificates = Certificates(*authority.files("IP:127.0.0.1"), client_authorities)
    server = HttpServer(Address("127.0.0.1", 0), {}, LiveCalls(), Access(), certificates, lambda: False)
    await server.start()
    try:
        yield server.address
    finally:
        await server.close()


async def ask(address: Address, file: Path) -> bytes:
    """Make one request over TLS; return the answer."""
    context = ssl.create_default_context(cafile=str(file))
    async with ends("no answer comes"):
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        writer.write(GET)
        answer = await reader.read()
        writer.close()
    return answer


async def test_https_is_served(authority: Authority) -> None:
    async with serving(authority) as address:
        answers = await asyncio.gather(*(ask(address, authority.file) for _ in range(20)))
    assert all(answer.startswith(b"HTTP/1.1 200 OK\r\n") for answer in answers)


async def test_silent_connections_are_within_their_share(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it are closed, and each leaves its place to another."""
    monkeypatch.setattr(handshakes, "MAX_HANDSHAKES", 8)
    async with serving(authority) as address:
        silent = [await asyncio.open_connection(address.host, address.port) for _ in range(8)]
        reading = {asyncio.create_task(reader.read()): writer for reader, writer in silent}
        held: set[asyncio.Task[bytes]] = set(reading)
        async with ends("connections beyond the share stay open"):
            while len(held) > 6:
                _, held = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        assert len(held) == 6
        for task in list(held)[:3]:
            reading[task].close()
        answered: object = None
        async with ends("no place becomes free"):
            while not isinstance(answered, bytes):
                (answered,) = await asyncio.gather(ask(address, authority.file), return_exceptions=True)
        assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
        for writer in reading.values():
            writer.close()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_a_handshake_that_does_not_end_is_cut(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.05)
    async with serving(authority) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"\x16\x03\x01")
        async with ends("the connection stays open"):
            await asyncio.gather(reader.read(), return_exceptions=True)
        writer.close()


async def test_what_is_no_tls_ends_its_own_connection(authority: Authority) -> None:
    async with serving(authority) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(GET)
        async with ends("the connection stays open"):
            await asyncio.gather(reader.read(), return_exceptions=True)
        writer.close()
        assert (await ask(address, authority.file)).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_outlives_the_trust_in_its_certificate(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Over HTTPS, a client resumes its session until the authority of its certificate is taken away."""
    (tmp_path / "other").mkdir()
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.root)
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(*authority.files("DNS:client", "client"))
    context.minimum_version = context.maximum_version = version

    def connect(address: Address, session: ssl.SSLSession | None) -> tuple[bytes, bool, ssl.SSLSession | None]:
        plain = socket.create_connection((address.host, address.port), LIMIT)
        with plain, context.wrap_socket(plain, server_hostname=address.host, session=session) as secure:
            secure.sendall(GET)
            return secure.recv(12), bool(secure.session_reused), secure.session

    async with serving(authority, trusted) as address:
        answer, resumed, session = await asyncio.to_thread(connect, address, None)
        assert (answer, resumed) == (b"HTTP/1.1 200", False)
        assert (await asyncio.to_thread(connect, address, session))[:2] == (b"HTTP/1.1 200", True)
        trusted.write_bytes(Authority(tmp_path / "other").root)
        try:
            answer, _, _ = await asyncio.to_thread(connect, address, session)
        except OSError:
            answer = b""  # How a refused client sees it depends on the version.
        assert answer == b""
