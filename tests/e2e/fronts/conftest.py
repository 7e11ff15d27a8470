"""An engine that serves its model by vLLM's service too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from headrace import Client
from smg_grpc_proto.generated import vllm_engine_pb2 as wire
from smg_grpc_proto.generated import vllm_engine_pb2_grpc
from support.clocks.waiting import wait_until
from support.models.tiny_models import make_tiny_llama
from support.servers.gate import Gate
from support.servers.processes import Server, gated_engine_server

MODEL = "tiny"


@dataclass
class Served:
    """The engine.

    Attributes:
        server: its process.
        gate: before the steps of its core.
        vllm: calls vLLM's service.
        client: calls its own.
    """

    server: Server
    gate: Gate
    vllm: Any
    client: Client

    @property
    def requests(self) -> int:
        """Requests in progress, as GetLoads tells."""
        return int(self.vllm.GetLoads(wire.GetLoadsRequest()).loads[0].num_total_reqs)

    def is_idle(self) -> None:
        """Waits until no request is in progress."""
        wait_until(lambda: self.requests == 0, "a request is still in progress")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fronts")
    gate, model = Gate(folder / "gate"), make_tiny_llama(folder / "tiny")
    flags = ("--model", f"{MODEL}={model}", "--vllm-service", MODEL, "--num-threads", "1", "--max-length", "256")
    with (
        gated_engine_server("e1", gate, *flags) as server,
        grpc.insecure_channel(server.address) as channel,
        Client(server.address) as client,
    ):
        client.start_model(MODEL)
        yield Served(server, gate, vllm_engine_pb2_grpc.VllmEngineStub(channel), client)


@pytest.fixture(autouse=True)
def opened(served: Served) -> Iterator[None]:
    """Each test begins and ends with an open gate and no requests."""
    yield
    served.gate.open()
    served.is_idle()
