"""Certificates for servers in tests, created on demand."""

from __future__ import annotations

import subprocess
from concurrent import futures
from pathlib import Path

import grpc

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """Signs certificates of servers.

    Args:
        folder: folder of its files.

    Attributes:
        root: its own certificate.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = ("-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"))
        self._openssl("-x509", *_KEY, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
        self.root = (folder / "ca.pem").read_bytes()

    def pair(self, names: str) -> tuple[bytes, bytes]:
        """Return key and certificate of a server with these names, such as "DNS:localhost,IP:127.0.0.1"."""
        extension = ("-addext", f"subjectAltName={names}")
        out = ("-subj", "/CN=server", "-keyout", "server.key", "-out", "server.pem")
        self._openssl("-x509", *self._own, *_KEY, *out, *extension)
        return (self._folder / "server.key").read_bytes(), (self._folder / "server.pem").read_bytes()

    def files(self, names: str, name: str = "server") -> tuple[Path, Path]:
        """Write certificate and key of a server or client with these names as files; return their paths."""
        key, certificate = self.pair(names)
        paths = self._folder / f"{name}-certificate.pem", self._folder / f"{name}-key.pem"
        paths[0].write_bytes(certificate)
        paths[1].write_bytes(key)
        return paths

    @property
    def file(self) -> Path:
        """Return the file of its own certificate."""
        return self._folder / "ca.pem"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", "req", *arguments], cwd=self._folder, check=True, capture_output=True)


def serve(pair: tuple[bytes, bytes] | None) -> tuple[grpc.Server, int]:
    """Start a server without methods, with this key and certificate or without TLS; return it and its port."""
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    return server, port
