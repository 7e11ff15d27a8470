"""A gateway that serves HTTP, in front of an engine whose steps wait at a gate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT, wait_until
from support.servers.crowd import serve
from support.servers.gate import Gate
from support.servers.http_servers import HttpGateway, http_gateway
from support.servers.processes import Server, gated_engine_server

_QWEN3 = Path(__file__).parents[2] / "templates" / "Qwen-Qwen3-0.6B.jinja"


@pytest.fixture(scope="session")
def shared_gateway(shared_engine: Server) -> Iterator[HttpGateway]:
    with http_gateway({"e1": shared_engine.address}) as gateway:
        yield gateway


@pytest.fixture
def gateway(shared_gateway: HttpGateway, engine: Server) -> HttpGateway:
    """The gateway, if it lives; afterwards nothing is left of any request."""
    shared_gateway.server.check()
    return shared_gateway


@pytest.fixture
def client(gateway: HttpGateway) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which does not retry."""
    with openai.OpenAI(base_url=gateway.url, api_key="none", max_retries=0, timeout=LIMIT) as client:
        yield client


@pytest.fixture
def other(gateway: HttpGateway, engine: Server) -> Iterator[openai.OpenAI]:
    """A client of another gateway in front of the same engine."""
    with http_gateway({"e1": engine.address}) as second:
        with openai.OpenAI(base_url=second.url, api_key="none", max_retries=0, timeout=LIMIT) as client:
            yield client


@pytest.fixture
def grpc(gateway: HttpGateway) -> Iterator[Client]:
    """Headrace's client of the same gateway."""
    with Client(gateway.address) as client:
        yield client


@pytest.fixture(scope="module")
def thinker(shared_engine: Server, tiny: Path) -> Iterator[str]:
    """A model whose template shows tools and thoughts as Qwen 3 does."""
    with Client(shared_engine.address) as client:
        template = _QWEN3.read_text(encoding="utf-8")
        client.install_model("thinker", path=str(tiny), chat_template=template, max_batch=4, num_threads=1)
        client.start_model("thinker")
        yield "thinker"
        client.stop_model("thinker")
        client.release_model("thinker")


@pytest.fixture
def pair(tiny: Path, tmp_path: Path) -> Iterator[tuple[dict[str, Server], HttpGateway, Gate]]:
    """Two engines whose steps one gate lets pass, and a gateway."""
    gate = Gate(tmp_path / "steps")
    with ExitStack() as stack:
        engines = {name: stack.enter_context(gated_engine_server(name, gate)) for name in ("e1", "e2")}
        for engine in engines.values():
            with Client(engine.address) as client:
                serve(client, tiny)
        gateway = stack.enter_context(http_gateway({name: engine.address for name, engine in engines.items()}))
        with Client(gateway.address) as client:
            wait_until(lambda: all(one.reachable for one in client.server_info().engines), "an engine is not reached")
        yield engines, gateway, gate
