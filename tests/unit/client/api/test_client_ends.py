"""How what a client started ends: generate, leaving the client, dropping it, closing it."""

from __future__ import annotations

import gc
import threading

import grpc
import headrace
import pytest
from headrace import (
    Client,
    FinishReason,
    UnavailableError,
)
from headrace_proto.v1 import generation_pb2, request_pb2
from support.clocks.client_clock import FakeClock
from support.logged import logged
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import HANDLE, accepted, end_record, ended, got, running_info, tokens
from unit.client.api.test_client import IDS, RELEASED

DRAINED = request_pb2.FINISH_REASON_DRAINED
GONE = Failure(grpc.StatusCode.UNAVAILABLE, reason="ENGINE_UNREACHABLE", retry_after=0.01)


def test_generate_yields_text_and_releases_at_the_end(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect(
        "GeneratedElements", [tokens(IDS, text="Hello"), tokens([*IDS, 1], 3, text=""), ended([*IDS, 1], "!")]
    )
    server.expect("ReleaseRequest", RELEASED)
    stream = client.generate("smol", "Hi", max_new_tokens=4)
    assert "".join(stream) == "Hello!"
    assert stream.queue.finish_reason is FinishReason.EOS
    assert stream.queue.RequestStatInfo()["generate_tps"] == 50.0
    assert list(stream) == []


def test_generate_left_early_is_released(client: Client, server: ScriptedServer) -> None:
    for _ in range(2):
        server.expect("StartRequest", accepted())
        server.expect("GeneratedElements", [tokens(IDS), Hang()])
        server.expect("ReleaseRequest", RELEASED)
    with client.generate("smol", "Hi") as stream:
        assert next(stream)
    assert server.requests("ReleaseRequest")[0].handle == HANDLE
    stream = client.generate("smol", "Hi")
    assert next(stream)
    del stream
    gc.collect()
    server.wait_for("ReleaseRequest", 2)


def test_generate_that_fails_is_released_and_raises(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Failure(grpc.StatusCode.NOT_FOUND, "gone.", reason="ENGINE_LOST")])
    server.expect("ReleaseRequest", RELEASED)
    with pytest.raises(headrace.EngineLostError):
        list(client.generate("smol", "Hi"))


def test_generate_checks_its_keywords_when_it_is_called(client: Client) -> None:
    with pytest.raises(TypeError, match="did you mean"):
        client.generate("smol", "Hi", max_new_token=1)


def test_leaving_the_client_releases_what_it_started_alone(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [Hang()], when=lambda request: request.handle == "a/b/1")
    server.expect("GeneratedElements", [ended([])], when=lambda request: request.handle == "a/b/2")
    server.expect("ReleaseRequest", RELEASED, RELEASED)
    with Client(server.address) as client:
        first, _ = client.start_request("smol", "Hello")
        second, queue = client.start_request("smol", "Hello")
        assert queue.Get() is None
        server.wait_for_streams(1)
        client.release_request(second)
        assert [one.handle for one in server.requests("ReleaseRequest")] == [second]
    assert [one.handle for one in server.requests("ReleaseRequest")] == [second, first]


def test_leaving_the_client_without_a_server_does_not_hang(
    server: ScriptedServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [Hang()], [Hang()])
    with Client(server.address, clock=clock) as client:
        for _ in range(2):
            client.start_request("smol", "Hello")
        server.wait_for_streams(2)
        server.stop()
    assert "could not release the remaining requests" in caplog.text


def test_leaving_the_client_skips_a_lost_engine(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    drained = end_record(IDS, status=request_pb2.GENERATE_STATUS_INTERRUPTED, finish_reason=DRAINED)
    server.expect("StartRequest", accepted("a/b/1"), accepted("c/d/2"))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS, record=drained)], when=lambda r: r.handle == "a/b/1")
    server.expect("GeneratedElements", [Hang()], when=lambda r: r.handle == "c/d/2")
    server.expect("ReleaseRequest", GONE, RELEASED)
    with Client(server.address, handover=False) as client:
        _, queue = client.start_request("smol", "Hi")
        assert list(queue)
        client.start_request("smol", "Hi")
        server.wait_for_streams(1)
    assert [one.handle for one in server.requests("ReleaseRequest")] == ["a/b/1", "c/d/2"]
    assert not logged(caplog)


def test_a_started_request_stays_attached_without_its_queue(client: Client, server: ScriptedServer) -> None:
    """Who keeps the handle alone must not lose the request to its lease."""
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Hang()], [Hang()])
    server.expect("GetRequest", got(running_info()))
    handle = client.start_request("smol", "Hello")[0]
    server.wait_for_streams(1)
    extra = client.open_queue(handle)
    server.wait_for_streams(2)
    del extra
    server.wait_for_streams(1)
    server.expect("ReleaseRequest", RELEASED)
    client.release_request(handle)
    server.wait_for_streams(0)


def test_a_dropped_client_keeps_only_held_queues(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [Hang()], when=lambda request: request.handle == "a/b/1")
    go = threading.Event()
    server.expect("GeneratedElements", [go, tokens(IDS), ended(IDS)], when=lambda request: request.handle == "a/b/2")
    client = Client(server.address)
    client.start_request("smol", "Hello")
    _, queue = client.start_request("smol", "Hello")
    server.wait_for_streams(2)
    del client
    server.wait_for_streams(1)
    go.set()
    assert [one.ids_from_generate for one in queue] == [IDS]
    server.wait_for_streams(0)


def test_a_closed_client_refuses_calls(client: Client) -> None:
    client.close()
    client.close()
    with pytest.raises(UnavailableError) as caught:
        client.server_info()
    assert caught.value.reason == "CLIENT_CLOSED"


def test_a_request_partly_on_a_lost_engine_is_asked_for_once(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    """The others may have ended before that."""
    drained = end_record(IDS, status=request_pb2.GENERATE_STATUS_INTERRUPTED, finish_reason=DRAINED)
    server.expect("StartRequest", accepted(effective_config=generation_pb2.GenerationConfig(n=2)))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS)], [tokens(IDS), ended(IDS, record=drained)])
    server.expect("ReleaseRequest", GONE)
    handle, queue = client.start_request("smol", "Hi", n=2)
    for choice in queue.choices:
        assert list(choice)
    with pytest.raises(UnavailableError):
        client.release_request(handle)
    assert len(server.requests("ReleaseRequest")) == 1
