"""Queues that wait: what a look at them learns, and what an unread one costs."""

from __future__ import annotations

import threading

import grpc
import pytest
from headrace import (
    Client,
    DeadlineError,
    GenerateStatus,
    HeadraceError,
)
from headrace._streaming.reads import WINDOW
from headrace_proto.v1 import request_pb2
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import wait_until
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import (
    HANDLE,
    ended,
    ended_info,
    got,
    running_info,
    status_only,
    text_of,
    tokens,
)
from unit.client.streaming.started import start

IDS = list(range(40))


def test_bc181_a_slow_prefill_is_waited_for(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    """75 s before the first token: no hidden limit ends the wait."""
    # Another answer first, so that time does not leap while the connection is being made.
    assert start(client, server, [tokens(IDS), ended(IDS)]).Get() is not None
    go = threading.Event()
    queue = start(client, server, [status_only(request_pb2.GENERATE_STATUS_INIT), go, tokens(IDS), ended(IDS)])
    begin = clock.now
    for _ in range(75):
        assert queue.GetWithTimeout(1000) is None
        assert queue.GenerateStatus() is GenerateStatus.Init
    assert clock.now == begin + 75
    clock.when_owner_waits = go.set
    assert queue.Get().ids_from_generate == IDS


@pytest.mark.parametrize("path", ["streams"], indirect=True)
def test_an_unread_queue_is_bounded_and_still_ends(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    """Poll until the end, then Get, with more tokens than the window holds."""
    ids = list(range(3 * WINDOW))
    steps = [tokens(ids, begin, begin + 256) for begin in range(0, len(ids), 256)]
    queue = start(client, server, [*steps, ended(ids)])
    server.expect("GetRequest", got(running_info(9000)), got(ended_info(ids)))
    wait_until(lambda: queue.GeneratedLength() == WINDOW, "the window is not filled")
    assert queue.GenerateStatus() is GenerateStatus.Generating
    clock.step()
    wait_until(lambda: queue.GeneratedLength() == 9000, "not all ids come")
    assert queue.GenerateStatus() is GenerateStatus.Generating
    clock.step()
    wait_until(lambda: queue.GenerateStatus() is GenerateStatus.GenerateFinished, "the end does not come")
    assert queue._feed.query(lambda reader: reader.position) == WINDOW
    elements = queue.Get()
    assert elements.ids_from_generate == ids
    assert elements.text == text_of(ids)
    assert queue.Get() is None


@pytest.mark.parametrize("path", ["streams"], indirect=True)
def test_looking_at_a_waiting_queue_learns_of_its_release(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    ids = list(range(WINDOW))
    queue = start(client, server, [tokens(ids), Hang()])
    server.expect("GetRequest", Failure(grpc.StatusCode.NOT_FOUND, reason="UNKNOWN_REQUEST"))
    clock.step()
    server.wait_for_streams(0)
    with pytest.raises(HeadraceError, match="released"):
        queue.Get()


@pytest.mark.parametrize("path", ["streams"], indirect=True)
def test_looking_at_a_waiting_queue_may_fail_without_harm(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    ids = list(range(WINDOW))
    queue = start(client, server, [tokens(ids), ended(ids)])
    server.expect("GetRequest", Failure(grpc.StatusCode.UNAVAILABLE), Failure(grpc.StatusCode.INTERNAL))
    clock.step()
    clock.step()
    server.wait_for("GetRequest", 2)
    assert len(queue.Get().ids_from_generate) == WINDOW
    assert queue.Get() is None


def test_queue_statistics_raise_if_the_server_is_away(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, [Hang()])
    server.expect("GetRequest", Failure(grpc.StatusCode.DEADLINE_EXCEEDED))
    with pytest.raises(DeadlineError):
        queue.RequestStatInfo()


def test_handles_are_asked_for_as_given(client: Client, server: ScriptedServer) -> None:
    start(client, server, [ended([])]).Get()
    request = server.requests("GeneratedElements")[0]
    assert (request.handle, request.index, request.from_position) == (HANDLE, 0, 0)
