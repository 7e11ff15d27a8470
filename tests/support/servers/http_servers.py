"""A gateway that serves HTTP, and raw requests to it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from headrace import Client

from support.clocks.waiting import LIMIT, wait_until
from support.servers.processes import Server, gateway_server


@dataclass
class HttpGateway:
    """A running gateway.

    Attributes:
        server: its process.
        http: host:port of HTTP.
    """

    server: Server
    http: str

    @property
    def address(self) -> str:
        """host:port of gRPC."""
        return self.server.address

    @property
    def url(self) -> str:
        """Where OpenAI's API begins."""
        return f"http://{self.http}/v1"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        """Make one request; return status, headers and body. `body` is sent as JSON unless it is bytes already."""
        with contextlib.closing(HTTPConnection(self.http, timeout=LIMIT)) as connection:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Post JSON; return status and decoded answer."""
        status, _, answer = self.ask("POST", path, body)
        return status, json.loads(answer)

    def connect(self) -> socket.socket:
        """Open a connection."""
        host, _, port = self.http.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=LIMIT)


def holder_of(gateway: HttpGateway) -> str:
    """Return the engine of the only request. Those that have ended before are released soon after their answers."""
    with Client(gateway.address) as client:
        wait_until(lambda: len(client.list_requests()) == 1, "there is not one request alone")
        return client.list_requests()[0].handle.partition("/")[0]


@contextlib.contextmanager
def http_gateway(engines: Mapping[str, str], *arguments: str) -> Iterator[HttpGateway]:
    """Run a gateway with HTTP in front of engines: address by name."""
    with gateway_server(engines, "--http", "127.0.0.1:0", *arguments) as server:
        yield HttpGateway(server, server.wait_event("listening")["http"])
