"""An engine whose steps wait at a gate, shared by the tests that strike while answers are on their way."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from headrace import Client
from headrace_engine.core.in_flight import InFlightStep
from headrace_engine.core.runner import SequenceStep
from headrace_engine.core.steps.executor import Executor
from support.clocks.waiting import LIMIT
from support.models.tiny_models import make_tiny_llama
from support.servers.books import release_all
from support.servers.crowd import serve
from support.servers.gate import Gate
from support.servers.pair import Pair, running_pair
from support.servers.processes import Server, gated_engine_server


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=2048)


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """The gate of `engine`."""
    return Gate(tmp_path_factory.mktemp("gate") / "steps")


@pytest.fixture(scope="session")
def shared_engine(tiny: Path, gate: Gate) -> Iterator[Server]:
    """An engine that serves the model."""
    with gated_engine_server("e1", gate) as engine, Client(engine.address) as client:
        serve(client, tiny)
        yield engine


@pytest.fixture
def engine(shared_engine: Server, gate: Gate) -> Iterator[Server]:
    """The same, if it lives. Afterwards nothing is left of any request, and the books balance."""
    shared_engine.check()
    yield shared_engine
    gate.open()
    with Client(shared_engine.address) as client:
        release_all(client)


@pytest.fixture
def pair(tiny: Path, tmp_path: Path) -> Iterator[Pair]:
    """Two engines that run the model, behind a gateway."""
    with running_pair(tiny, tmp_path / "steps") as both:
        yield both


@pytest.fixture
def steps_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Steps of cores in this process wait while it is not set: all requests are there before the first one ends."""
    opened, launch = threading.Event(), Executor.launch

    def waiting(executor: Executor, steps: Sequence[SequenceStep]) -> InFlightStep:
        assert opened.wait(LIMIT)
        return launch(executor, steps)

    monkeypatch.setattr(Executor, "launch", waiting)
    yield opened
    opened.set()
