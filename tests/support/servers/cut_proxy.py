"""A TCP proxy that can keep bytes to itself, and break every connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK = 1 << 16


class CutProxy:
    """Passes bytes between clients and a server, each way of each connection in a thread of its own.

    Attributes:
        address: where it listens.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._swallows = False
        self._open: list[socket.socket] = []
        self._stranded: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Let no more of the server's bytes reach a client. What clients say still reaches the server."""
        self._swallows = True

    def strand(self) -> None:
        """Let nothing pass either way on the connections that there are, which stay open. New ones are served."""
        self._stranded.update(self._open)

    def cut(self) -> None:
        """Break all connections and take no more."""
        # Closing alone does not wake a thread that waits there.
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if not (answers and self._swallows) and source not in self._stranded:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def cut_proxy(server: str) -> Iterator[CutProxy]:
    """A proxy in front of a server's address."""
    proxy = CutProxy(server)
    try:
        yield proxy
    finally:
        proxy.cut()
