"""A gateway that serves HTTP, in front of an engine whose steps wait at a gate."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from headrace import Client
from support.clocks.waiting import LIMIT
from support.servers.http_servers import HttpGateway, http_gateway
from support.servers.processes import Server


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
def grpc(gateway: HttpGateway) -> Iterator[Client]:
    """Headrace's client of the same gateway."""
    with Client(gateway.address) as client:
        yield client
