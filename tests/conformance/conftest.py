"""The three paths on which the contract holds: in process, to an engine, and through a gateway.

What concerns requests and results is tested with the asynchronous client too, where its way differs: in process, and
over the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headrace import Client
from headrace._transport.aio_transport import AsyncTransport, for_asyncio
from headrace._transport.transport import open_transport
from headrace_proto.wire.transport import SessionTransport, Transport
from native.build import BUILD_LIMIT
from support.backends.isa_levels import lowest
from support.contract.loop_client import LoopThread, loop_client
from support.contract.places import (
    ALL_ON_RANKS,
    BROKEN_MODEL,
    LONG_LENGTH,
    LONG_MODEL,
    MAX_BATCH,
    MAX_LENGTH,
    MODEL,
    RANKS,
    SIM,
    SMALL_POOL_MODEL,
    Folders,
    Place,
    paths_of,
)
from support.contract.ranked_place import SIZES, ranked_place
from support.contract.simulated_place import simulated_place
from support.models.processor_files import processor_arguments, write_processors
from support.models.tiny_models import make_tiny_llama, make_tiny_mistral
from support.servers.books import release_all
from support.servers.processes import Server, engine_server, gateway_server
from support.servers.wire import Wire

OTHERS = {SIM: "simulated", **{path: f"ranked_{backend}" for backend, path in RANKS.items()}}
"""The fixtures of paths where only marked tests run."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Tiny random models: one for most tests, one for long answers, one whose logits are never finite."""
    root = tmp_path_factory.mktemp("models")
    # Wide in the middle, so that steps take about a millisecond: tests stop, drain and preempt what still runs. With
    # this seed no answer that is read from its last token on ends in half a character.
    tiny = make_tiny_llama(root / "tiny", max_position_embeddings=MAX_LENGTH, intermediate_size=16_384, seed=1)
    # A window keeps all steps of a long answer short.
    long = make_tiny_mistral(
        root / "long", num_hidden_layers=1, hidden_size=16, intermediate_size=65_536, num_attention_heads=1,
        num_key_value_heads=1, sliding_window=64, max_position_embeddings=LONG_LENGTH,
    )  # fmt: skip
    broken = make_tiny_llama(root / "broken")
    _spoil(broken)
    return Folders(tiny, long, broken)


def _spoil(folder: Path) -> None:
    """Let one final norm weight be no number, so that all logits are none."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="session")
def processors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Logits processors that each engine is started with."""
    return write_processors(tmp_path_factory.mktemp("processors"))


@pytest.fixture(scope="session")
def engine(processors: dict[str, Path]) -> Iterator[Server]:
    """An engine service, as its own process. It computes as any machine can, the engine in this process as this can."""
    with ExitStack() as stack:
        with lowest():
            server = stack.enter_context(engine_server("e1", *processor_arguments(processors)))
        yield server


@pytest.fixture(scope="session")
def gateway(engine: Server) -> Iterator[Server]:
    """A gateway in front of it, as its own process."""
    with gateway_server({"e1": engine.address}) as server:
        yield server


@pytest.fixture(scope="session")
def inprocess(processors: dict[str, Path]) -> Iterator[Transport]:
    """An engine in this process."""
    transport = open_transport("inprocess:", {"name": "e1", "logits_processors": processors})
    yield _Shared(transport)
    transport.close()


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    """Where asynchronous clients live."""
    thread = LoopThread()
    yield thread
    thread.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that has all tests run on an engine with ranks."""
    text = "run all tests on an engine whose models have two ranks of this backend"
    parser.addoption(ALL_ON_RANKS, choices=tuple(RANKS), help=text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Has tests run on each path, those of ASYNC with the asynchronous client too, marked ones elsewhere as well."""
    if "place" in metafunc.fixturenames:
        paths = paths_of(Path(metafunc.module.__file__).name, metafunc.function.__name__)
        for marker, others in (("sim", (SIM,)), ("ranks", RANKS.values())):
            if metafunc.definition.get_closest_marker(marker) is not None:
                paths = (*paths, *others)
        backend = metafunc.config.getoption(ALL_ON_RANKS, default=None)
        paths = paths if backend is None else (RANKS[backend],)
        metafunc.parametrize("place", paths, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test on the simulator may have to build it, which a busy machine takes long for."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("place") == SIM:
            item.add_marker(pytest.mark.timeout(BUILD_LIMIT))


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An engine whose device is simulated."""
    with simulated_place(tmp_path_factory.mktemp("simulated")) as place:
        yield place


@pytest.fixture(scope="session")
def ranked(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    folders: Folders,
    processors: dict[str, Path],
) -> Callable[[str], AbstractContextManager[Place]]:
    """Starts an engine of a backend whose models are computed by two ranks each: those of marked tests, or all."""
    names = SIZES if request.config.getoption(ALL_ON_RANKS, default=None) else (MODEL, SMALL_POOL_MODEL)
    return lambda backend: ranked_place(backend, tmp_path_factory.mktemp("ranked"), folders, processors, names)


@pytest.fixture(scope="session")
def ranked_cpu(ranked: Callable[[str], AbstractContextManager[Place]]) -> Iterator[Place]:
    """Two ranks of the cpu backend."""
    with ranked("cpu") as place:
        yield place


@pytest.fixture(scope="session")
def ranked_torch(ranked: Callable[[str], AbstractContextManager[Place]]) -> Iterator[Place]:
    """Two ranks of the torch backend."""
    with ranked("torch") as place:
        yield place


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest, folders: Folders) -> Iterator[Place]:
    """One of the three paths, or of the others, with the models installed and running."""
    path, _, kind = request.param.partition("-")
    if path in OTHERS:
        yield request.getfixturevalue(OTHERS[path])
        return
    needs = {"direct": ("engine",), "gateway": ("gateway", "engine")}.get(path, (path,))
    found = [request.getfixturevalue(name) for name in needs]
    servers, target = tuple(each for each in found if isinstance(each, Server)), found[0]
    target = target.address if isinstance(target, Server) else target
    make: Any = partial(loop_client, request.getfixturevalue("loop_thread")) if kind == "async" else Client
    connect = partial(make, target)
    with connect() as client:
        _install(client, folders)
        yield Place(path, client, connect, target, folders.tiny, folders.long, servers=servers)


class _Shared:
    """A transport that outlives its clients."""

    def __init__(self, transport: Transport) -> None:
        self.unary = transport.unary
        self.stream = transport.stream
        if isinstance(transport, SessionTransport):
            self.session = transport.session
        self._transport = transport

    def for_asyncio(self) -> AsyncTransport:
        """The same for event loops."""
        transport = for_asyncio(self._transport)
        transport.close = _stay  # type: ignore[method-assign]
        return transport

    def close(self) -> None:
        """The transport's owner closes it."""


async def _stay() -> None:
    """The transport's owner closes it."""


def _install(client: Client, folders: Folders) -> None:
    tiny, long, broken = str(folders.tiny), str(folders.long), str(folders.broken)
    # One thread each: threads of several cores that wait for one another on two processors take longest.
    client.install_model(MODEL, path=tiny, max_length=MAX_LENGTH, max_batch=MAX_BATCH[MODEL], num_threads=1)
    sizes = {"max_length": LONG_LENGTH, "max_batch": MAX_BATCH[LONG_MODEL], "num_blocks": 1300}
    client.install_model(LONG_MODEL, path=long, **sizes, num_threads=1)
    client.install_model(SMALL_POOL_MODEL, path=tiny, max_length=128, max_batch=8, num_blocks=20, num_threads=1)
    client.install_model(BROKEN_MODEL, path=broken, max_length=64, num_threads=1)
    for name in (MODEL, LONG_MODEL, SMALL_POOL_MODEL, BROKEN_MODEL):
        client.start_model(name)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    """The path's client, while its servers live. Afterwards everything is released and the books balance."""
    for server in place.servers:
        server.check()
    yield place.client
    release_all(place.client)


@pytest.fixture
def wire(place: Place, client: Client) -> Iterator[Wire]:
    """The path's messages, as they are."""
    wire = Wire(place.target)
    yield wire
    wire.close()
