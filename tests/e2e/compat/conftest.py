"""A model, and a gateway with an engine behind it, for the packages with other systems' APIs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client
from headrace_engine.engine.models.memory_models import FOLDERS
from headrace_engine.models.loaders.opening import ARCHIVE
from support.models.tiny_models import make_tiny_llama
from support.servers.books import release_all
from support.servers.processes import Server, engine_server, gateway_server

LENGTH = 8192


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, whose sequences may be as long as the pages say."""
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=LENGTH)


@pytest.fixture(scope="module", autouse=True)
def levels() -> Iterator[None]:
    """Levels of loggers, which a pipeline sets for the whole process, are those of before after a file of tests."""
    loggers = [logging.getLogger(name) for name in ("headrace", "headrace_engine")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def servers() -> Iterator[tuple[Server, Server]]:
    """An engine, and a gateway in front of it."""
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        yield engine, gateway


@pytest.fixture
def gateway(servers: tuple[Server, Server]) -> Iterator[Server]:
    """The gateway. Afterwards nothing is left on it: no request, and no model, in memory or installed."""
    engine, gateway = servers
    engine.check()
    yield gateway
    engine.check()
    with Client(gateway.address) as client:
        release_all(client)
        for name in {info.model_name for info in client.list_models()}:
            client.stop_model(name)
            client.release_model(name)
        for archive in Path(tempfile.gettempdir()).glob(f"{FOLDERS}/*/*{ARCHIVE}"):
            client.free_serialized_model(archive.parent.name)


@pytest.fixture(params=["inprocess", "gateway"])
def address(request: pytest.FixtureRequest) -> str | None:
    """Where to run: None for this process, or the address of a gateway."""
    return None if request.param == "inprocess" else request.getfixturevalue("gateway").address
