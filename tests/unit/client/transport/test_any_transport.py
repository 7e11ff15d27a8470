"""The seam between the client and what carries its calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf.message import Message
from headrace import Client, UnavailableError
from headrace._transport import transport as seam
from headrace_proto.v1 import engine_service_pb2, status_pb2
from headrace_proto.wire.transport import CallError, MessageStream
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import LIMIT
from support.logged import logged
from support.scripted.wire_samples import HANDLE, accepted, ended, tokens


class Echo:
    """A transport without gRPC: answers from a list, and notes what happens to it."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.asked: list[tuple[str, Message, float | None]] = []
        self.closed = False

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        self.asked.append((method, request, timeout))
        if method.endswith("StartRequest"):
            return accepted()
        if method.endswith("ReleaseRequest"):
            raise CallError(status_pb2.Status(code=5, message="no such request."))
        return engine_service_pb2.GetServerInfoResponse(name="echo")

    def stream(self, method: str, request: Message, *, timeout: float | None) -> MessageStream:
        self.asked.append((method, request, timeout))
        return Stream([tokens([1, 2]), ended([1, 2])])

    def close(self) -> None:
        self.closed = True


class Stream:
    """Messages, then the end of the call."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = iter(messages)
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        return next(self.messages)

    def cancel(self) -> None:
        self.cancelled.set()


def test_any_transport_carries_the_client() -> None:
    echo = Echo()
    client = Client(echo, timeout=12.5, clock=FakeClock())
    assert client.server_info().name == "echo"
    method, _, timeout = echo.asked[0]
    assert (method, timeout) == ("headrace.v1.EngineService/GetServerInfo", 12.5)
    handle, queue = client.start_request("smol", "Hello")
    assert handle == HANDLE
    assert [one.ids_from_generate for one in queue] == [[1, 2]]
    client.close()
    assert echo.closed


class Stuck(Echo):
    """Answers nothing until it is closed; then it says that the call was cancelled, as some transports do."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()
        self._over = threading.Event()

    def unary(self, method: str, request: Message, *, timeout: float | None) -> Message:
        self.asked.append((method, request, timeout))
        self.waits.set()
        assert self._over.wait(LIMIT)
        raise CallError(status_pb2.Status(code=1, message="the call was cancelled"))

    def close(self) -> None:
        self._over.set()


def test_closing_ends_calls_at_once_whatever_the_transport_says(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck()
    client = Client(stuck)
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        call = pool.submit(client.sync_request, HANDLE)
        assert stuck.waits.wait(LIMIT)
        client.close()
        with pytest.raises(UnavailableError) as caught:
            call.result(60)
    assert caught.value.reason == "CLIENT_CLOSED"
    assert len(stuck.asked) == 1
    assert logged(caplog) == []


def test_inprocess_is_found_by_entry_point_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    class EntryPoint:
        def load(self) -> Any:
            return Echo

    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        assert (group, name) == ("headrace.transports", "inprocess")
        return [EntryPoint()]

    monkeypatch.setattr(seam, "entry_points", entry_points)
    made = seam.open_transport("inprocess:", {"threads": 3})
    assert isinstance(made, Echo)
    assert made.options == {"threads": 3}


def test_without_the_engine_inprocess_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "entry_points", lambda **_: [])
    with pytest.raises(
        ImportError,
        match=r"the package headrace-engine, .* from a clone of Headrace: pip install \./proto \./engine_service$",
    ):
        Client("inprocess:")


def test_the_transport_is_closed_when_everything_is_dropped() -> None:
    echo = Echo()
    client = Client(echo)
    client.server_info()
    del client
    assert echo.closed
