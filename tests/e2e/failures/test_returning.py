"""An engine that returns to its models after a restart: an outage for its callers, and never a mistake of theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from headrace import Client, HeadraceError, RetryPolicy
from headrace_proto.v1.request_service_pb2 import ReleaseRequestRequest, StartRequestRequest
from headrace_proto.v1.request_service_pb2_grpc import RequestServiceStub
from support.clocks.waiting import LIMIT, wait_until
from support.models.tiny_models import make_tiny_llama
from support.servers.ports import free_port
from support.servers.processes import Server, engine_server, gateway_server

PATIENT = RetryPolicy(give_up_after=200)


class Starts:
    """Starts requests over and over, from threads of its own, without and with a client's patience.

    Each releases a request before it starts the next one: a slow core's queue would be full otherwise.
    """

    def __init__(self, address: str) -> None:
        self.failures: list[HeadraceError] = []
        self.codes: set[str] = set()
        self.started = 0
        self._address = address
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._patiently, self._once)]

    def __enter__(self) -> Starts:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _patiently(self) -> None:
        with Client(self._address, retry=PATIENT) as client:
            while not self._over.is_set():
                try:
                    handle, _ = client.start_request("tiny", ids=[1, 2], max_new_tokens=1)
                except HeadraceError as error:
                    self.failures.append(error)
                    return
                self.started += 1
                with suppress(HeadraceError):  # Its engine may be gone.
                    client.release_request(handle)

    def _once(self) -> None:
        with grpc.insecure_channel(self._address) as channel:
            stub = RequestServiceStub(channel)
            request = StartRequestRequest(model_name="tiny", config={"max_new_tokens": 1})
            request.token_ids.ids.extend([1, 2])
            while not self._over.is_set():
                try:
                    handle = stub.StartRequest(request, timeout=LIMIT).request.handle
                    self.codes.add("OK")
                except grpc.RpcError as error:
                    self.codes.add(error.code().name)
                    continue
                with suppress(grpc.RpcError):
                    stub.ReleaseRequest(ReleaseRequestRequest(handle=handle), timeout=LIMIT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("returning") / "tiny")


@pytest.fixture(params=["state directory", "command line"])
def arguments(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> tuple[str, ...]:
    """Of an engine that runs the model by itself after a restart."""
    if request.param == "state directory":
        return ("--state-dir", str(tmp_path / "state"), "--listen", f"127.0.0.1:{free_port()}")
    config = ("--set", "num_threads=1", "--set", "max_length=64")
    return ("--model", f"tiny={folder}", *config, "--listen", f"127.0.0.1:{free_port()}")


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _run_model(address: str, folder: Path) -> None:
    with Client(address) as client:
        if "tiny" not in {model.model_name for model in client.list_models()}:
            client.install_model("tiny", path=str(folder), max_length=64, num_threads=1)
        client.start_model("tiny")


@pytest.mark.parametrize("through_gateway", [False, True], ids=["direct", "gateway"])
def test_b4_a_restarted_engine_shows_no_hard_error(
    processes: ExitStack, arguments: tuple[str, ...], folder: Path, through_gateway: bool
) -> None:
    engine = processes.enter_context(engine_server("e1", *arguments))
    _run_model(engine.address, folder)
    address = engine.address
    if through_gateway:
        gateway: Server = processes.enter_context(gateway_server({"e1": engine.address}))
        gateway.wait_event("engine_reached")
        address = gateway.address
    with Starts(address) as starts:
        wait_until(lambda: starts.started >= 3, "nothing was started before the restart")
        engine.stop()
        back = processes.enter_context(engine_server("e1", *arguments))
        back.wait_event("model_ready", 120)
        before = starts.started
        wait_until(lambda: starts.started >= before + 3 or starts.failures, "nothing was started afterwards")
    assert starts.failures == []
    # CANCELLED is of calls that were under way when the engine went; clients take it for an outage, too.
    assert starts.codes <= {"OK", "UNAVAILABLE", "CANCELLED"}
