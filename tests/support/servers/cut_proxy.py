"""A TCP proxy that can withhold bytes, delay or throttle them, and break every connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

_CHUNK = 1 << 16


class CutProxy:
    """Forwards bytes between clients and a server, each direction of each connection in a thread of its own.

    Args:
        server: host:port of the server.
        source: address of this machine that it connects from, which is its clients' host to the server.

    Attributes:
        address: address that it listens on.
    """

    def __init__(self, server: str, source: str = "127.0.0.1") -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._source = (source, 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._swallows = self._vanished = False
        self._delay = 0.0
        self._rate = 0
        self._open: list[socket.socket] = []
        self._stranded: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Withhold the server's bytes from now on. Clients' bytes still reach the server."""
        self._swallows = True

    def delay(self, seconds: float) -> None:
        """Hold each piece back for a time from now on, in both directions."""
        self._delay = seconds

    def throttle(self, rate: int) -> None:
        """Pass on at most so many bytes a second in each direction of each connection from now on."""
        self._rate = rate

    def strand(self) -> None:
        """Withhold bytes in both directions on all present connections, which stay open. New ones are served."""
        self._stranded.update(self._open)

    def vanish(self) -> None:
        """Withhold bytes in both directions on all connections, present and new. They stay open, and are accepted."""
        self._vanished = True

    def cut(self) -> None:
        """Break all connections, and accept no more."""
        # Closing alone does not wake a thread blocked in accept.
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server, source_address=self._source)
                self._open += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if not (self._vanished or (answers and self._swallows) or source in self._stranded):
                    time.sleep(self._delay + (len(data) / self._rate if self._rate else 0.0))
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def cut_proxy(server: str, source: str = "127.0.0.1") -> Iterator[CutProxy]:
    """Run a proxy in front of a server's address."""
    proxy = CutProxy(server, source)
    try:
        yield proxy
    finally:
        proxy.cut()
