"""The HTTP side of a gateway: its address, its routes, and the client by which they call the gateway's own services."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from headrace_proto.pure.addresses import Address
from headrace_proto.server.listening import ListenError, check_free
from headrace_proto.server.tls import Certificates

from headrace_gateway.access.access import Access
from headrace_gateway.forwarding.calls import LiveCalls
from headrace_gateway.http.app import application
from headrace_gateway.http.clients import Clients
from headrace_gateway.http.generation import Generations
from headrace_gateway.http.handshakes import Handshakes
from headrace_gateway.http.probes import Probes
from headrace_gateway.http.protocol import IDLE_SECONDS, BoundedProtocol, connection_shares


class HttpServer:
    """Serves HTTP in the gateway's event loop.

    Args:
        address: address to listen on.
        servicers: of the gateway, by the full name of their service.
        calls: where requests are counted.
        access: who may call.
        certificates: for TLS; None: no encryption.
        serves: says whether an engine serves a model.

    Attributes:
        address: has the real port once started.
    """

    def __init__(
        self,
        address: Address,
        servicers: Mapping[str, Any],
        calls: LiveCalls,
        access: Access,
        certificates: Certificates | None,
        serves: Callable[[], bool],
    ) -> None:
        self.address = address
        self._certificates = certificates
        self._clients = Clients(servicers, access)
        self._generations = Generations(self._clients)
        protocol = partial(BoundedProtocol, connection_shares())
        config = uvicorn.Config(
            application(self._clients, self._generations, calls, access, Probes(serves)),
            http=protocol,  # type: ignore[arg-type]  # It is called as the class would be.
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._config = config
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: the address is in use, or not an address of this machine.
            CertificateError: a file of its certificate cannot be used.
        """
        self._config.load()
        if self._certificates is not None:
            self._server.contexts = self._certificates.contexts()
        check_free(self.address)
        listening = _bound(self.address)
        self.address = replace(self.address, port=listening.getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve([listening]), name="headrace-http")
        await self._server.listens.wait()

    async def close(self) -> None:
        """Close all connections, release what their requests left, and close the client."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
        await self._generations.close()
        await self._clients.close()


class _Server(uvicorn.Server):
    """uvicorn's server within a program that handles signals itself.

    Attributes:
        listens: it does.
        contexts: gives the TLS context of a new connection; None: no encryption.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self.contexts: Callable[[], ssl.SSLContext] | None = None
        self._handshakes: Handshakes | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        if self.contexts is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self._handshakes = Handshakes(self.contexts, self._protocol)
            for listening in sockets or ():
                self._handshakes.begin(listening)
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and close all connections."""
        if self._handshakes is not None:
            await self._handshakes.close()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        given = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return self.config.http_protocol_class(**given)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _bound(address: Address) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except OSError as error:
        listening.close()
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from None
    return listening
