"""Two engines behind a gateway, whose steps one gate lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace import Client

from support.clocks.waiting import wait_until
from support.servers.crowd import serve
from support.servers.gate import Gate
from support.servers.processes import Server, gated_engine_server, gateway_server


@dataclass
class Pair:
    """Two engines whose steps one gate lets pass, and a gateway before them."""

    engines: dict[str, Server]
    gateway: Server
    gate: Gate

    def holder(self, handle: str) -> Server:
        """The engine that a handle names."""
        return self.engines[handle.partition("/")[0]]


@contextmanager
def running_pair(model: Path, steps: Path) -> Iterator[Pair]:
    """Run engines that both serve a model; `steps` is the file of their gate."""
    gate = Gate(steps)
    with ExitStack() as stack:
        engines = {name: stack.enter_context(gated_engine_server(name, gate)) for name in ("e1", "e2")}
        addresses = {name: engine.address for name, engine in engines.items()}
        gateway = stack.enter_context(gateway_server(addresses))
        with Client(gateway.address) as client:
            wait_until(lambda: all(e.reachable for e in client.server_info().engines), "an engine is not reached")
            serve(client, model)
        yield Pair(engines, gateway, gate)
