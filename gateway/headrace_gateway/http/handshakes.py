"""TLS connections before they speak HTTP: bounded in number by host, and in time."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable

from headrace_proto.pure.host_shares import HostShares

from headrace_gateway.http.callers import peer_of

MAX_HANDSHAKES = 1024
"""Maximum handshakes at a time, and at most an eighth of the files that the process may open."""

HANDSHAKE_SECONDS = 30.0
"""Seconds in which a handshake must end."""

_FULL_SECONDS = 0.1
"""Seconds to wait where no connection can be accepted: the process or the machine has no file left."""


class Handshakes:
    """Accepts connections, and gives them to a protocol once they are encrypted.

    asyncio's own servers accept any number, and the protocol learns of none before its handshake has ended.

    Args:
        contexts: gives the TLS context of a new connection.
        protocol: makes the protocol of a connection.
    """

    def __init__(self, contexts: Callable[[], ssl.SSLContext], protocol: Callable[[], asyncio.Protocol]) -> None:
        self._contexts, self._protocol = contexts, protocol
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._shares = HostShares(
            MAX_HANDSHAKES if files == resource.RLIM_INFINITY else min(MAX_HANDSHAKES, files // 8)
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, listening: socket.socket) -> None:
        """Accept connections of a socket. It listens from now on."""
        listening.setblocking(False)
        listening.listen(MAX_HANDSHAKES)
        self._keep(asyncio.create_task(self._accept(listening), name="headrace-http-accept"))

    async def close(self) -> None:
        """Accept no more, and end the handshakes in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_FULL_SECONDS)
                continue
            peer = peer_of((address[0], address[1]))
            if self._shares.can_take(peer):
                self._shares.take(peer)
                self._keep(asyncio.create_task(self._shake(connection, peer), name="headrace-http-handshake"))
            else:
                connection.close()
            await asyncio.sleep(0)  # Others have their turn, however many connect.

    async def _shake(self, connection: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self._contexts(), ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:
            connection.close()  # The peer speaks no TLS, has no certificate, is too slow or has left.
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            self._shares.give_back(peer)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
