"""The iterator over text, beside what test_client shows of it."""

from __future__ import annotations

import threading

import grpc
import pytest
from headrace import Client, RequestReleasedError, UnavailableError
from headrace_proto.v1 import request_pb2, request_service_pb2
from support.logged import logged
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, end_record, ended, tokens

INTERRUPTED, DRAINED = request_pb2.GENERATE_STATUS_INTERRUPTED, request_pb2.FINISH_REASON_DRAINED
RELEASED = request_service_pb2.ReleaseRequestResponse()


def test_a_stream_that_outlives_its_client_does_not_call_again(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([1, 2]), Hang()])
    server.expect("ReleaseRequest", RELEASED)
    with Client(server.address) as client:
        stream = client.generate("smol", "Hi")
        assert next(stream)
    with pytest.raises(RequestReleasedError):
        next(stream)
    stream.close()
    assert not logged(caplog)


def test_nothing_comes_of_a_closed_stream(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens([1, 2]), Hang()])
    server.expect("ReleaseRequest", RELEASED)
    stream = client.generate("smol", "Hi")
    assert next(stream)
    stream.close()
    assert list(stream) == []
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(RequestReleasedError):
        stream.queue.Get()


def test_a_stream_that_another_thread_closes_ends(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Hang()])
    server.expect("ReleaseRequest", RELEASED)
    stream = client.generate("smol", "Hi")
    closer = threading.Thread(target=lambda: (server.wait_for_streams(1), stream.close()))
    closer.start()
    assert list(stream) == []
    closer.join()


def test_a_failed_release_is_logged_and_hides_nothing(
    client: Client, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Hang()])
    stream = client.generate("smol", "Hi")
    server.wait_for_streams(1)
    client.close()
    with pytest.raises(UnavailableError):
        next(stream)
    assert "could not release a request, which ends with its lease" in caplog.text


def test_a_request_lost_with_its_engine_is_asked_for_once(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Failure(grpc.StatusCode.UNAVAILABLE, reason="ENGINE_UNREACHABLE", retry_after=0.01)
    server.expect("StartRequest", accepted())
    end = end_record([1, 2], status=INTERRUPTED, finish_reason=DRAINED)
    server.expect("GeneratedElements", [tokens([1, 2]), ended([1, 2], record=end)])
    server.expect("ReleaseRequest", gone)
    with Client(server.address, handover=False) as client:
        stream = client.generate("smol", "Hi")
        assert "".join(stream)
        assert stream.queue.finish_reason == "DRAINED"
    assert len(server.requests("ReleaseRequest")) == 1
    assert not logged(caplog)


def test_a_start_that_fails_raises_from_generate_itself(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", Failure(grpc.StatusCode.UNAVAILABLE, reason="NO_ENGINE", retry_after=100.0))
    with pytest.raises(UnavailableError):
        client.generate("smol", "Hi")
