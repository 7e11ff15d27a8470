"""A gateway and an engine as an operator secures them: TLS, a secret between them, and API keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from headrace import Client
from headrace_gateway.access.api_keys import new_key
from support.models.tiny_models import make_tiny_llama
from support.servers.certificates import Authority
from support.servers.processes import Server, engine_server, gateway_server

MODEL = "tiny"
_KEYS = {
    "ops": "admin = true\n",
    "web": 'owner = "team"\n',
    "job": 'owner = "team"\n',
    "app": f'models = ["{MODEL}"]\n',
    "few": "concurrent_requests = 1\n",
    "pair": "concurrent_requests = 2\n",
    "small": "kept_bytes = 30000\n",
    "slow": "tokens_per_minute = 60\n",
}


@dataclass
class Secured:
    """The servers, and what their clients need.

    Attributes:
        engine: the engine's process.
        gateway: the gateway's process.
        authority: of all certificates.
        keys: API keys by name.
        client_files: certificate and key of a client.
    """

    engine: Server
    gateway: Server
    authority: Authority
    keys: dict[str, str]
    client_files: tuple[Path, Path]

    @property
    def http(self) -> str:
        """host:port of HTTP."""
        return str(self.gateway.wait_event("listening")["http"])

    def client(self, key: str = "", **options: Any) -> Client:
        """Return a client of the gateway with a key, by its name."""
        sent = {"api_key": self.keys[key]} if key else {}
        return Client(
            self.gateway.address, credentials=grpc.ssl_channel_credentials(self.authority.root), **sent, **options
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Such servers, with a model that runs."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    certificate, key = authority.files("DNS:localhost,IP:127.0.0.1")
    mine = authority.files("DNS:gateway", "gateway")
    secret = folder / "secret"
    secret.write_text("c0ffee" * 8)
    made = {name: new_key(name) for name in _KEYS}
    keys = folder / "keys.toml"
    keys.write_text("".join(lines + _KEYS[name] for name, (_, lines) in made.items()))
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    engine_flags = (*tls, "--tls-client-ca", str(authority.file), "--secret-file", str(secret))
    front = ("--keys", str(keys), "--http", "127.0.0.1:0")
    to_engine = ("--engine-ca", str(authority.file), "--engine-cert", str(mine[0]), "--engine-key", str(mine[1]))
    with (
        engine_server("e1", *engine_flags) as engine,
        gateway_server(
            {"e1": engine.address}, *tls, *front, *to_engine, "--engine-secret-file", str(secret)
        ) as gateway,
    ):
        gateway.wait_event("engine_reached")
        found = Secured(engine, gateway, authority, {name: sent for name, (sent, _) in made.items()}, mine)
        with found.client("ops") as client:
            client.install_model(MODEL, path=str(make_tiny_llama(folder / "tiny")), num_threads=1, max_length=256)
            client.start_model(MODEL)
        yield found


@pytest.fixture
def connected(secured: Secured) -> Iterator[Callable[[str], Client]]:
    """Opens clients by the names of their keys, and closes them with the test."""
    clients: list[Client] = []

    def connect(key: str) -> Client:
        clients.append(secured.client(key))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
