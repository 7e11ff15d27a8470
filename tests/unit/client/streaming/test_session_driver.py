"""The session over a real channel: one stream and two threads for all queues, replaced when it is lost."""

from __future__ import annotations

import threading

import grpc
import pytest
from headrace import AuthError, Client, UnavailableError
from headrace_proto.v1 import engine_service_pb2, request_service_pb2
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import LIMIT, wait_until
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, ended, got, running_info, tokens

IDS = list(range(30))


@pytest.fixture
def path() -> str:
    """Sessions alone."""
    return "session"


def threads(before: list[threading.Thread] | None = None) -> list[threading.Thread]:
    """All threads that read or write for a client, but for those that were there before."""
    names = ("headrace-reader", "headrace-writer")
    return [one for one in threading.enumerate() if one.name in names and one not in (before or [])]


def start(client: Client, server: ScriptedServer, number: int, *steps: object) -> object:
    """A queue whose channels play these steps, one list after the other."""
    handle = f"e1/i1/{number}"
    server.expect("StartRequest", accepted(handle))
    server.expect("GeneratedElements", *steps, when=lambda request: request.handle == handle)
    return client.start_request("smol", "Hello")[1]


def rest(queue: object) -> list[int]:
    """All ids to the end."""
    return [token for one in queue for token in one.ids_from_generate]  # type: ignore[attr-defined]


def test_many_queues_share_a_stream_and_two_threads(client: Client, server: ScriptedServer) -> None:
    before = threads()
    server.expect("GetServerInfo", engine_service_pb2.GetServerInfoResponse(name="e1"))
    client.server_info()
    assert (server.sessions, threads(before)) == ([], [])
    queues = [start(client, server, number, [tokens(IDS), ended(IDS)]) for number in range(20)]
    assert [rest(queue) for queue in queues] == [IDS] * 20
    assert len(server.sessions) == 1
    assert sorted(one.name for one in threads(before)) == ["headrace-reader", "headrace-writer"]
    options = [request.options.client for request in server.said if request.HasField("options")]
    assert len(options) == 1
    assert options[0].startswith("headrace ")


def test_what_was_read_to_its_end_is_detached(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, 1, [tokens(IDS), ended(IDS)])
    other = start(client, server, 2, [tokens(IDS), ended(IDS)])
    wait_until(lambda: other.GeneratedLength() == len(IDS), "not all ids come")  # type: ignore[attr-defined]
    assert rest(queue) == IDS
    server.wait_until_said(lambda request: list(request.detach) == [1])
    assert all(2 not in request.detach for request in server.said)


def test_a_cut_session_resumes_in_another_where_all_were(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    queues = [
        start(client, server, number, [tokens(IDS, 0, number), Hang()], [tokens(IDS, number), ended(IDS)])
        for number in range(1, 6)
    ]
    found = [queue.Get().ids_from_generate for queue in queues]  # type: ignore[attr-defined]
    server.cut_sessions(Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
    clock.step()
    assert [begin + rest(queue) for begin, queue in zip(found, queues, strict=True)] == [IDS] * 5
    assert [request.from_position for request in server.requests("GeneratedElements")[5:]] == [1, 2, 3, 4, 5]


def test_a_session_that_the_server_ends_is_opened_again(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    queue = start(client, server, 1, [tokens(IDS, 0, 7), Hang()], [tokens(IDS, 7), ended(IDS)])
    assert queue.Get() is not None  # type: ignore[attr-defined]
    server.cut_sessions()
    clock.step()
    assert rest(queue) == IDS[7:]


def test_a_client_leaves_a_server_that_has_nothing_more_to_say(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    """Which ends the stream only then: a write to one that has ended may cost what was not read yet."""
    queue = start(client, server, 1, [tokens(IDS, 0, 7), Hang()], [tokens(IDS, 7), ended(IDS)])
    assert queue.Get() is not None  # type: ignore[attr-defined]
    server.take_leave()
    clock.step()
    assert rest(queue) == IDS[7:]


def test_a_silent_server_is_left_for_another(server: ScriptedServer, clock: FakeClock) -> None:
    other = ScriptedServer().start()
    server.session_times, server.answers_pings = (10.0, 25.0), False
    client = Client(f"{server.address},{other.address}", clock=clock)
    queue = start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
    assert queue.Get() is not None  # type: ignore[attr-defined]
    other.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
    clock.advance(10)
    server.wait_until_said(lambda request: request.HasField("ping"))
    wait_until(lambda: clock.advance(5) or server.live_streams == 0, "the silent server is not left")
    clock.run()
    assert rest(queue) == IDS[7:]
    assert other.requests("GeneratedElements")[0].from_position == 7
    client.close()
    other.stop()
    other.check()


def test_a_session_fails_over_to_another_address(server: ScriptedServer, clock: FakeClock) -> None:
    other = ScriptedServer().start()
    client = Client(f"{server.address},{other.address}", clock=clock)
    queue = start(client, server, 1, [tokens(IDS, 0, 7), Hang()])
    assert queue.Get() is not None  # type: ignore[attr-defined]
    other.expect("GeneratedElements", [tokens(IDS, 7), ended(IDS)])
    server.stop()
    clock.run()
    assert rest(queue) == IDS[7:]
    client.close()
    other.stop()
    other.check()


@pytest.mark.parametrize(
    "refusal",
    [
        Failure(grpc.StatusCode.INVALID_ARGUMENT, "session is not supported.", reason="NOT_SUPPORTED"),
        Failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ],
)
def test_a_server_without_sessions_is_read_by_streams(client: Client, server: ScriptedServer, refusal: Failure) -> None:
    server.expect("Session", refusal)
    queues = [start(client, server, number, [tokens(IDS), ended(IDS)]) for number in range(3)]
    assert [rest(queue) for queue in queues] == [IDS] * 3
    assert server.said == []


def test_a_session_without_permission_fails_its_queues(client: Client, server: ScriptedServer) -> None:
    server.expect("Session", Failure(grpc.StatusCode.UNAUTHENTICATED, "no key.", reason="BAD_API_KEY"))
    server.expect("StartRequest", accepted("e1/i1/1"))
    queue = client.start_request("smol", "Hello")[1]
    with pytest.raises(AuthError, match="no key"):
        queue.Get()
    assert rest(start(client, server, 2, [tokens(IDS), ended(IDS)])) == IDS


def test_closing_wakes_readers_and_ends_the_threads(client: Client, server: ScriptedServer) -> None:
    before = threads()
    queue = start(client, server, 1, [tokens(IDS, 0, 3), Hang()])
    assert queue.Get() is not None  # type: ignore[attr-defined]
    running = threads(before)
    client.close()
    with pytest.raises(UnavailableError) as caught:
        queue.Get()  # type: ignore[attr-defined]
    assert caught.value.reason == "CLIENT_CLOSED"
    server.wait_for_streams(0)
    for thread in running:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_a_dropped_client_ends_with_its_threads(server: ScriptedServer) -> None:
    before = threads()
    client = Client(server.address)
    queue = start(client, server, 1, [tokens(IDS), ended(IDS)])
    assert rest(queue) == IDS
    del client, queue
    wait_until(lambda: not threads(before), "the threads go on")


def test_releasing_and_dropping_detach(client: Client, server: ScriptedServer) -> None:
    start_one = start(client, server, 1, [Hang()])
    server.expect("GetRequest", got(running_info(), handle="e1/i1/1"))
    server.expect("GeneratedElements", [Hang()])
    extra = client.open_queue("e1/i1/1")
    server.wait_for_streams(2)
    del extra
    server.wait_until_said(lambda request: list(request.detach) == [2])
    server.expect("ReleaseRequest", request_service_pb2.ReleaseRequestResponse())
    client.release_request("e1/i1/1")
    server.wait_until_said(lambda request: list(request.detach) == [1])
    server.wait_for_streams(0)
    assert start_one is not None
