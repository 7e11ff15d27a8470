"""Streams that break: opened again from the position, with pauses; given up only for good reasons."""

from __future__ import annotations

import threading

import grpc
import pytest
from headrace import (
    Client,
    GenerateStatus,
    HeadraceError,
    InternalServerError,
    RetryPolicy,
    UnavailableError,
)
from headrace._streaming.recovery import Recovery
from hypothesis import given
from hypothesis import strategies as st
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import LIMIT, wait_until
from support.logged import logged
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import (
    ended,
    text_of,
    tokens,
)
from unit.client.streaming.started import start

IDS = list(range(40))
CUT = Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def test_a_broken_stream_is_opened_again_from_the_position(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    queue = start(
        client,
        server,
        [tokens(IDS, 0, 7), CUT],
        [CUT],
        [tokens(IDS, 7, 20), Failure(grpc.StatusCode.UNAVAILABLE, reason="ENGINE_UNREACHABLE", retry_after=3.0)],
        [tokens(IDS, 20), ended(IDS, "…")],
    )
    stepper = threading.Thread(target=lambda: [clock.step() for _ in range(3)])
    stepper.start()
    found = list(queue)
    stepper.join(LIMIT)
    assert [token for one in found for token in one.ids_from_generate] == IDS
    assert "".join(one.text for one in found) == text_of(IDS) + "…"
    assert [request.from_position for request in server.requests("GeneratedElements")] == [0, 7, 7, 20]
    assert clock.now >= 1003.0


def test_a_stream_that_stops_without_an_end_is_opened_again(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    queue = start(client, server, [tokens(IDS, 0, 7)], [tokens(IDS, 7), ended(IDS)])
    clock.step()
    assert sum(len(one.ids_from_generate) for one in queue) == len(IDS)


def test_bc163_a_raising_handler_ends_the_queue_with_a_status(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    """Three streams in a row that bring nothing and give no reason: the sequence is failed, not left Generating."""
    queue = start(
        client, server, [tokens(IDS, 0, 7), RuntimeError("a bug")], [RuntimeError("a bug")], [RuntimeError("a bug")]
    )
    clock.step()
    clock.step()
    assert queue.Get().ids_from_generate == IDS[:7]
    with pytest.raises(InternalServerError):
        queue.Get()
    assert queue.GenerateStatus() is GenerateStatus.InternalError
    assert clock.now - 1000.0 < 1.0


def test_bc163_a_cancelled_handler_ends_the_queue_with_a_status(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    cancelled = Failure(grpc.StatusCode.CANCELLED, "cancelled")
    queue = start(client, server, [cancelled], [cancelled], [cancelled])
    clock.step()
    clock.step()
    with pytest.raises(HeadraceError):
        queue.Get()
    assert queue.GenerateStatus() is GenerateStatus.InternalError


def test_an_engine_fault_with_a_reason_is_final_at_once(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, [Failure(grpc.StatusCode.INTERNAL, "out of luck.", reason="ENGINE_FAULT")])
    with pytest.raises(InternalServerError, match="out of luck"):
        queue.Get()


def test_damaged_results_end_the_queue_after_what_was_whole(client: Client, server: ScriptedServer) -> None:
    damaged = tokens(IDS, 7)
    damaged.elements.checksum_after ^= 1
    queue = start(client, server, [tokens(IDS, 0, 7), damaged, Hang()])
    wait_until(lambda: queue.GeneratedLength() == 7, "not all ids come")
    assert queue.Get().ids_from_generate == IDS[:7]
    with pytest.raises(InternalServerError, match="checksum"):
        queue.Get()
    server.wait_for_streams(0)


def test_a_long_outage_wakes_get_and_the_queue_resumes(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    """Reading gives up after half a minute; the reader does not, and nothing is lost."""
    go = threading.Event()
    queue = start(client, server, [tokens(IDS, 0, 7), go])
    assert queue.Get().ids_from_generate == IDS[:7]
    server.stop()
    go.set()
    errors: list[HeadraceError] = []

    def read() -> None:
        try:
            queue.Get()
        except UnavailableError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    begin = clock.now
    while not errors:
        clock.step()
    reader.join(LIMIT)
    assert clock.now - begin >= RetryPolicy().give_up_after
    assert "no answer from 127.0.0.1" in str(errors[0])
    assert queue.GenerateStatus() is GenerateStatus.Generating
    server.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
    server.start()
    clock.run()
    found: list[int] = []
    while len(found) < 33:
        try:
            found += queue.Get().ids_from_generate
        except UnavailableError:
            continue
    assert found == IDS[7:]


def test_bc191_after_an_outage_the_same_client_is_back(server: ScriptedServer) -> None:
    """In real time, since gRPC's own pauses are part of it: calls fail for a while, then succeed."""
    with Client(server.address, retry=RetryPolicy(give_up_after=0.5)) as client:
        server.expect("GetServerInfo", lambda request: info())
        assert client.server_info().name == "e1"
        server.stop()
        for _ in range(6):
            with pytest.raises(UnavailableError):
                client.server_info()
        server.expect("GetServerInfo", lambda request: info())
        server.start()
        wait_until(lambda: answers(client), "no server answers")


def info() -> object:
    """What GetServerInfo answers."""
    from headrace_proto.v1 import engine_service_pb2

    return engine_service_pb2.GetServerInfoResponse(name="e1")


def answers(client: Client) -> bool:
    """Whether a call gets through."""
    try:
        return client.server_info().name == "e1"
    except UnavailableError:
        return False


@given(reasons=st.lists(st.sampled_from(["UNAVAILABLE", "ENGINE_UNREACHABLE", "INTERNAL", "UNKNOWN"]), max_size=20))
def test_pauses_are_bounded_and_only_unexplained_errors_final(reasons: list[str]) -> None:
    clock = FakeClock()
    recovery = Recovery(RetryPolicy(), clock)
    for count, reason in enumerate(reasons, 1):
        kind = InternalServerError if reason in ("INTERNAL", "UNKNOWN") else UnavailableError
        delay = recovery.delay(kind("failed.", reason=reason))
        if kind is InternalServerError and count >= 3:
            assert delay is None
            return
        assert delay is not None
        assert 0 <= delay <= RetryPolicy().max_delay


def test_progress_makes_patience_whole_again() -> None:
    clock = FakeClock()
    recovery = Recovery(RetryPolicy(), clock)
    for _ in range(2):
        assert recovery.delay(InternalServerError("failed.", reason="INTERNAL")) is not None
    clock.advance(31)
    assert recovery.too_long
    recovery.progressed()
    assert not recovery.too_long
    assert recovery.delay(InternalServerError("failed.", reason="INTERNAL")) is not None


@pytest.mark.parametrize(
    ("reasons", "times"),
    [
        (["UNAVAILABLE"], 0),
        (["UNAVAILABLE"] * 4, 1),
        (["STATUS_LOST"] * 4, 0),
        (["STATUS_LOST"] * 3 + ["UNAVAILABLE"] * 2, 1),
    ],
)
def test_a_row_of_failures_is_logged_once_when_a_cause_is_known(
    reasons: list[str], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = Recovery(RetryPolicy(), FakeClock())
    for _ in range(2):
        for reason in reasons:
            error = UnavailableError("failed.", reason=reason)
            assert recovery.delay(error) is not None
            recovery.log_failure(error)
        recovery.progressed()
    assert len(logged(caplog)) == 2 * times
