"""TLS of servers: which files are refused, and when changed ones take effect."""

from __future__ import annotations

import argparse
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace_proto.pure.addresses import Address
from headrace_proto.server.listening import bind
from headrace_proto.server.tls import CertificateError, Certificates, add_tls_flags, certificates_of, file_stamp
from support.clocks.waiting import LIMIT, wait_until
from support.servers.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs the certificates of a test."""
    (tmp_path / "authority").mkdir()
    return Authority(tmp_path / "authority")


@contextmanager
def serving(certificates: Certificates) -> Iterator[int]:
    """Run a server without methods; give its port."""
    from concurrent import futures

    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    port = server.add_secure_port("127.0.0.1:0", certificates.credentials())
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def served(port: int, authority: Authority) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    import socket

    with socket.create_connection(("127.0.0.1", port), LIMIT) as plain, context.wrap_socket(plain) as secure:
        found = secure.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found).encode()


def test_new_files_are_served_and_bad_ones_never(authority: Authority) -> None:
    certificate, key = authority.files("IP:127.0.0.1")
    first = certificate.read_bytes()
    with serving(Certificates(certificate, key)) as port:
        assert served(port, authority) in first + b"\n"
        key.write_bytes(b"nonsense")
        assert served(port, authority) in first + b"\n"
        authority.files("IP:127.0.0.1,DNS:localhost")
        second = certificate.read_bytes()
        assert second != first
        assert served(port, authority) in second + b"\n"
        certificate.unlink()
        assert served(port, authority) in second + b"\n"


def test_files_replaced_while_they_were_read_are_read_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.files("IP:127.0.0.1")
    certificates, read, loads = Certificates(certificate, key), ssl.SSLContext.load_cert_chain, 0

    def load(context: ssl.SSLContext, *files: Path, **options: Any) -> None:
        nonlocal loads
        read(context, *files, **options)
        loads += 1
        if loads == 2:  # The check was the first.
            authority.files("IP:127.0.0.1,DNS:localhost")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    contexts = certificates.contexts()
    second = contexts()
    assert loads == 4
    assert contexts() is second


def test_a_file_written_in_place_has_another_stamp(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    before, time = file_stamp(file), file.stat().st_mtime_ns
    wait_until(lambda: _rewritten(file, time) != before, "the file counts as it was")


def _rewritten(file: Path, time: int) -> tuple[int, ...]:
    file.write_text("two")
    os.utime(file, ns=(time, time))
    return file_stamp(file)


def test_bc184_only_clients_with_a_certificate_connect(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.files("IP:127.0.0.1")
    mine, my_key = authority.files("DNS:client", "client")
    (tmp_path / "other").mkdir()
    foreign, foreign_key = Authority(tmp_path / "other").files("DNS:client")

    def connects(port: int, *pair: bytes) -> bool:
        credentials = grpc.ssl_channel_credentials(authority.root, *pair)
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            states: list[grpc.ChannelConnectivity] = []
            channel.subscribe(states.append, try_to_connect=True)
            decided = {grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE}
            wait_until(lambda: bool(decided & set(states)), "the connection is neither made nor refused")
            return grpc.ChannelConnectivity.READY in states

    with serving(Certificates(certificate, key, authority.file)) as port:
        assert connects(port, my_key.read_bytes(), mine.read_bytes())
        assert not connects(port, foreign_key.read_bytes(), foreign.read_bytes())
        assert not connects(port)


def test_a_server_listens_with_and_without_certificates(authority: Authority) -> None:
    certificate, key = authority.files("IP:127.0.0.1")

    async def listen(credentials: grpc.ServerCredentials | None) -> int:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        port = bind(server, Address("127.0.0.1", 0), credentials).port
        await server.stop(None)
        return port

    import asyncio

    for credentials in (None, Certificates(certificate, key).credentials()):
        assert asyncio.run(listen(credentials)) > 0


class TestFlags:
    """The flags --tls-cert, --tls-key and --tls-client-ca."""

    @staticmethod
    def read(*arguments: str | Path) -> Certificates | None:
        parser = argparse.ArgumentParser()
        add_tls_flags(parser)
        return certificates_of(parser.parse_args(list(map(str, arguments))))

    def test_without_them_there_is_no_tls(self) -> None:
        assert self.read() is None

    def test_all_of_them(self, authority: Authority) -> None:
        certificate, key = authority.files("IP:127.0.0.1")
        found = self.read("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", authority.file)
        assert found == Certificates(certificate, key, authority.file)

    def test_one_without_the_other(self, authority: Authority) -> None:
        certificate, key = authority.files("IP:127.0.0.1")
        with pytest.raises(ValueError, match="--tls-key is missing"):
            self.read("--tls-cert", certificate)
        with pytest.raises(ValueError, match="--tls-cert is missing"):
            self.read("--tls-key", key)
        with pytest.raises(ValueError, match="--tls-client-ca needs --tls-cert and --tls-key"):
            self.read("--tls-client-ca", authority.file)

    def test_files_that_cannot_be_used(self, authority: Authority, tmp_path: Path) -> None:
        certificate, key = authority.files("IP:127.0.0.1")
        _, other_key = authority.files("DNS:other", "other")
        nonsense = tmp_path / "nonsense.pem"
        nonsense.write_text("nonsense")
        locked = tmp_path / "locked.pem"
        command = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:abcd", "-out", str(locked)]
        subprocess.run(command, check=True, capture_output=True)
        cases: list[tuple[tuple[Path, ...], str]] = [
            ((tmp_path / "none.pem", key), "none.pem: no such file"),
            ((certificate, tmp_path), "no such file"),
            ((nonsense, key), "nonsense.pem with .*: .*PEM"),
            ((certificate, other_key), "the private key is not that of the certificate"),
            ((certificate, locked), "the private key is encrypted"),
        ]
        for pair, why in cases:
            with pytest.raises(CertificateError, match=why) as failure:
                self.read("--tls-cert", pair[0], "--tls-key", pair[1])
            assert "\n" not in str(failure.value)
        with pytest.raises(CertificateError, match=r"nonsense\.pem: has no certificate"):
            self.read("--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", nonsense)
