"""A request whose engine is lost goes on at another one: what the client sends, and what the caller sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from headrace import (
    Client,
    EngineLostError,
    FinishReason,
    HeadraceError,
    InternalServerError,
    ResultQueue,
    RetryPolicy,
    UnavailableError,
)
from headrace._streaming.handover import MOST_DRAINS, MOST_LOSSES
from headrace._streaming.reader import SequenceReader
from headrace._streaming.session_driver import SessionDriver
from headrace_proto.v1 import generation_pb2, request_pb2, status_pb2
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import LIMIT, wait_until
from support.scripted.replies import URL, Failure, Hang, packed
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import accepted, end_record, ended, got, running_info, tokens
from unit.client.api.test_client import RELEASED

FIRST, SECOND = "e1/i1/1", "e2/i2/1"
LOST = Failure(grpc.StatusCode.NOT_FOUND, "the engine is gone.", reason="ENGINE_LOST")
IDS = [5, 6, 7, 8, 9]
DRAINED = request_pb2.FINISH_REASON_DRAINED
FAILED = request_pb2.FINISH_REASON_ENGINE_LOST
STOPPED = request_pb2.GENERATE_STATUS_INTERRUPTED


def unreachable(*, lost: bool) -> Failure:
    """What a gateway says of an engine that does not answer."""
    info = status_pb2.ErrorInfo(reason="ENGINE_UNREACHABLE", domain="headrace", metadata={"lost": str(lost).lower()})
    detail = packed(info, URL + "ErrorInfo")
    return Failure(grpc.StatusCode.UNAVAILABLE, "no answer.", retry_after=1.0, details=[detail])


@pytest.fixture
def client(server: ScriptedServer, clock: FakeClock) -> Iterator[Client]:
    """A client that hands requests over."""
    client = Client(server.address, clock=clock)
    yield client
    client.close()


def script(server: ScriptedServer, *steps: Any, second: Any = None, **fields: Any) -> None:
    """A request that begins on one engine with these steps, and goes on at another one."""
    server.expect("StartRequest", accepted(FIRST, **fields), accepted(SECOND, handover=1, **fields))
    server.expect("GeneratedElements", list(steps), when=lambda r: r.handle == FIRST)
    server.expect("GeneratedElements", second or [tokens(IDS, 3), ended(IDS)], when=lambda r: r.handle == SECOND)


def ids_of(queue: ResultQueue) -> list[int]:
    """All ids of a queue, which come once and in order."""
    found: list[int] = []
    for elements in queue:
        assert elements.position == len(found)
        found += elements.ids_from_generate
    return found


UNLISTED = Failure(grpc.StatusCode.NOT_FOUND, "no such engine.", reason="UNKNOWN_ENGINE")
"""What a gateway says of an engine that has left its list."""


@pytest.mark.parametrize("loss", [LOST, unreachable(lost=True), UNLISTED], ids=["lost", "unreachable", "unlisted"])
def test_a_queue_goes_on_where_it_was(client: Client, server: ScriptedServer, loss: Failure) -> None:
    if loss is not LOST:
        server.expect("ReleaseRequest", RELEASED)
    script(server, tokens(IDS, 0, 3), loss)
    handle, queue = client.start_request("smol", "Hi", max_new_tokens=5)
    assert ids_of(queue) == IDS
    assert (queue.handle, queue.finish_reason) == (handle, FinishReason.EOS)
    first, second = server.requests("StartRequest")
    assert (second.request_id, second.handover, second.config.seed) == (first.request_id, 1, 7)
    assert (second.text, second.config.max_new_tokens) == ("Hi", 5)
    (resumed,) = second.resume.sequences
    assert (list(resumed.delivered_ids), resumed.ended) == (IDS[:3], False)
    assert resumed.stat.HasField("first_token_time")
    if loss is not LOST:
        server.wait_for("ReleaseRequest")
        assert server.requests("ReleaseRequest")[0].handle == FIRST


def test_an_engine_that_is_only_slow_is_waited_for(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    clock.run()
    server.expect("StartRequest", accepted(FIRST))
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), unreachable(lost=False)], [tokens(IDS, 3), ended(IDS)])
    assert ids_of(client.start_request("smol", "Hi")[1]) == IDS


def test_a_drained_engine_is_read_to_its_end_first(client: Client, server: ScriptedServer) -> None:
    end = end_record(IDS[:3], status=STOPPED, finish_reason=DRAINED)
    script(server, tokens(IDS, 0, 2), tokens(IDS, 2, 3), ended(IDS[:3], record=end))
    assert ids_of(client.start_request("smol", "Hi")[1]) == IDS
    (resumed,) = server.requests("StartRequest")[1].resume.sequences
    assert list(resumed.delivered_ids) == IDS[:3]
    assert resumed.stat.generated_token_length == 3  # as the engine reported with the end


def failed_end(ids: list[int]) -> request_pb2.EndRecord:
    """What an engine ends a request with whose model it cannot compute any more."""
    return end_record(ids, status=request_pb2.GENERATE_STATUS_INTERNAL_ERROR, finish_reason=FAILED)


def test_an_engine_that_has_failed_is_read_to_its_end_first(client: Client, server: ScriptedServer) -> None:
    script(server, tokens(IDS, 0, 2), tokens(IDS, 2, 3), ended(IDS[:3], record=failed_end(IDS[:3])))
    assert ids_of(client.start_request("smol", "Hi")[1]) == IDS
    (resumed,) = server.requests("StartRequest")[1].resume.sequences
    assert list(resumed.delivered_ids) == IDS[:3]


def test_a_request_that_four_engines_fail_on_ends(client: Client, server: ScriptedServer) -> None:
    """It may be what makes them fail, unlike engines that shut down."""
    handles = [f"e{number}/i/1" for number in range(MOST_LOSSES + 1)]
    server.expect("StartRequest", *(accepted(handle, handover=number) for number, handle in enumerate(handles)))
    for handle in handles:
        steps = [tokens(IDS)] if handle == handles[0] else []
        end = ended(IDS, record=failed_end(IDS))
        server.expect("GeneratedElements", [*steps, end], when=lambda r, h=handle: r.handle == h)
    queue = client.start_request("smol", "Hi")[1]
    with pytest.raises(HeadraceError):
        ids_of(queue)
    assert len(server.requests("StartRequest")) == MOST_LOSSES + 1


def test_where_no_engine_takes_over_a_drained_queue_ends_so(client: Client, server: ScriptedServer) -> None:
    end = end_record(IDS, status=STOPPED, finish_reason=DRAINED)
    server.expect("StartRequest", accepted(FIRST), Failure(grpc.StatusCode.NOT_FOUND, "none.", reason="UNKNOWN_MODEL"))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS, record=end)])
    queue = client.start_request("smol", "Hi")[1]
    assert ids_of(queue) == IDS
    assert queue.finish_reason is FinishReason.DRAINED


def test_where_no_server_answers_a_drained_queue_ends_so(server: ScriptedServer, clock: FakeClock) -> None:
    end = end_record(IDS, status=STOPPED, finish_reason=DRAINED)
    server.expect("StartRequest", accepted(FIRST), Failure(grpc.StatusCode.UNAVAILABLE, "no answer."))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS, record=end)])
    server.expect("ReleaseRequest", RELEASED)
    with Client(server.address, clock=clock, retry=RetryPolicy(give_up_after=0)) as client:
        queue = client.start_request("smol", "Hi")[1]
        assert ids_of(queue) == IDS
        assert queue.finish_reason is FinishReason.DRAINED


def test_where_no_server_answers_a_failed_engine_s_request_waits(server: ScriptedServer, clock: FakeClock) -> None:
    unanswered = Failure(grpc.StatusCode.UNAVAILABLE, "no answer.")
    server.expect("StartRequest", accepted(FIRST), unanswered, accepted(SECOND, handover=1))
    end = ended(IDS[:3], record=failed_end(IDS[:3]))
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), end], when=lambda r: r.handle == FIRST)
    server.expect("GeneratedElements", [tokens(IDS, 3), ended(IDS)], when=lambda r: r.handle == SECOND)
    server.expect("ReleaseRequest", RELEASED)
    with Client(server.address, clock=clock, retry=RetryPolicy(give_up_after=0)) as client:
        queue = client.start_request("smol", "Hi")[1]
        found: list[int] = []
        with pytest.raises(UnavailableError, match="no answer"):
            for elements in queue:
                found += elements.ids_from_generate
        for elements in queue:
            found += elements.ids_from_generate
        assert (found, queue.finish_reason) == (IDS, FinishReason.EOS)


def test_where_no_engine_takes_over_a_lost_one_is_an_error(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted(FIRST), Failure(grpc.StatusCode.NOT_FOUND, "none.", reason="UNKNOWN_MODEL"))
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST])
    queue = client.start_request("smol", "Hi")[1]
    assert queue.Get() is not None
    with pytest.raises(EngineLostError, match=r"no other one took over: none") as caught:
        ids_of(queue)
    assert caught.value.request_id == "r1"
    assert queue.finish_reason is FinishReason.ENGINE_LOST


@pytest.mark.parametrize(
    ("field", "why"),
    [("prompt_hash", "another tokenizer or template"), ("adapter_digest", "adapter with other content")],
)
def test_another_tokenizer_or_adapter_is_refused(client: Client, server: ScriptedServer, field: str, why: str) -> None:
    other = accepted(SECOND, handover=1, **{field: "other"})
    server.expect("StartRequest", accepted(FIRST, **{field: "one"}), other)
    server.expect("GeneratedElements", [LOST])
    server.expect("ReleaseRequest", RELEASED)
    with pytest.raises(EngineLostError, match=why):
        ids_of(client.start_request("smol", "Hi")[1])
    server.wait_for("ReleaseRequest")
    assert server.requests("ReleaseRequest")[0].handle == SECOND


def test_a_request_that_loses_every_engine_ends(client: Client, server: ScriptedServer) -> None:
    """It may be the cause."""
    handles = [f"e{number}/i/1" for number in range(4)]
    server.expect("StartRequest", *(accepted(handle, handover=number) for number, handle in enumerate(handles)))
    for number, handle in enumerate(handles):
        server.expect(
            "GeneratedElements", [tokens(IDS, number, number + 1), LOST], when=lambda r, h=handle: r.handle == h
        )
    with pytest.raises(EngineLostError, match="4 engines were lost"):
        ids_of(client.start_request("smol", "Hi")[1])


def test_all_sequences_move_together(client: Client, server: ScriptedServer) -> None:
    """One has ended: the other engine is told, and does not run it."""
    config = generation_pb2.GenerationConfig(n=2)
    server.expect("StartRequest", accepted(FIRST, effective_config=config), accepted(SECOND, effective_config=config))
    of = lambda handle, index: lambda r: (r.handle, r.index) == (handle, index)  # noqa: E731
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS)], when=of(FIRST, 0))
    go = threading.Event()
    server.expect("GeneratedElements", [tokens(IDS, 0, 2), go, LOST], when=of(FIRST, 1))
    server.expect("GeneratedElements", [tokens(IDS, 2), ended(IDS)], when=of(SECOND, 1))
    first, second = client.start_request("smol", "Hi", n=2)[1].choices
    assert ids_of(first) == IDS
    go.set()
    assert ids_of(second) == IDS
    resumed = server.requests("StartRequest")[1].resume.sequences
    assert [(one.index, list(one.delivered_ids), one.ended) for one in resumed] == [(0, IDS, True), (1, IDS[:2], False)]


def test_what_is_left_of_a_deadline_is_sent(client: Client, server: ScriptedServer, clock: FakeClock) -> None:
    go = threading.Event()
    script(server, tokens(IDS, 0, 3), go, LOST)
    queue = client.start_request("smol", "Hi", deadline=10)[1]
    assert queue.Get() is not None
    clock.advance(4)
    go.set()
    list(queue)
    assert server.requests("StartRequest")[1].config.deadline.seconds == 6


def test_calls_follow_the_request(client: Client, server: ScriptedServer) -> None:
    """The caller knows one handle, whatever engine has the request."""
    script(server, tokens(IDS, 0, 3), LOST, second=[tokens(IDS, 3, 4), Hang()])
    handle, queue = client.start_request("smol", "Hi")
    while queue.GeneratedLength() < 4:
        queue.Get()
    server.expect("GetRequest", got(running_info(), handle=SECOND))
    assert client.get_request(handle).handle == handle
    server.expect("ReleaseRequest", RELEASED)
    client.release_request(handle)
    assert [server.requests(name)[0].handle for name in ("GetRequest", "ReleaseRequest")] == [SECOND, SECOND]


def test_a_busy_fleet_is_waited_for(client: Client, server: ScriptedServer) -> None:
    full = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full.", reason="QUEUE_FULL", retry_after=1.0)
    server.expect("StartRequest", accepted(FIRST), full, accepted(SECOND, handover=1))
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST], when=lambda r: r.handle == FIRST)
    server.expect("GeneratedElements", [tokens(IDS, 3), ended(IDS)], when=lambda r: r.handle == SECOND)
    assert ids_of(client.start_request("smol", "Hi")[1]) == IDS
    assert [one.attempt for one in server.requests("StartRequest")] == [0, 0, 1]


def test_a_client_may_do_without(server: ScriptedServer, clock: FakeClock) -> None:
    server.expect("StartRequest", accepted(FIRST))
    server.expect("GeneratedElements", [LOST])
    client = Client(server.address, clock=clock, handover=False, retry=RetryPolicy(give_up_after=1.0))
    with pytest.raises(EngineLostError, match="the engine is gone"):
        ids_of(client.start_request("smol", "Hi")[1])
    client.close()


def test_a_call_follows_a_request_that_moves_meanwhile(client: Client, server: ScriptedServer) -> None:
    """The engine that is asked first has lost it."""
    go = threading.Event()

    def start(request: Any) -> Any:
        assert go.wait(LIMIT)
        return accepted(SECOND, handover=1)

    server.expect("StartRequest", accepted(FIRST), start)
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST], when=lambda r: r.handle == FIRST)
    server.expect("GeneratedElements", [tokens(IDS, 3), ended(IDS)], when=lambda r: r.handle == SECOND)
    handle, queue = client.start_request("smol", "Hi")
    server.wait_for("StartRequest", 2)

    def lost(request: Any) -> Any:
        go.set()
        wait_until(lambda: queue.GeneratedLength() == len(IDS), "the queue does not go on")
        return LOST

    server.expect("GetRequest", lost, when=lambda r: r.handle == FIRST)
    server.expect("GetRequest", got(running_info(), handle=SECOND), when=lambda r: r.handle == SECOND)
    assert client.get_request(handle).handle == handle
    assert ids_of(queue) == IDS


@pytest.mark.parametrize(("kind", "name", "calls"), [(SequenceReader, "land", 0), (SessionDriver, "attach", 1)])
def test_a_fault_of_a_move_ends_its_queue(
    client: Client,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type,
    name: str,
    calls: int,
) -> None:
    """Whatever it is: the copy is released, the reader is told, and the log has the stack."""
    real, left = getattr(kind, name), iter(range(calls))

    def called(self: Any, *given: Any) -> Any:
        if next(left, None) is None:
            raise ZeroDivisionError("landed badly")
        return real(self, *given)

    monkeypatch.setattr(kind, name, called)
    server.expect("StartRequest", accepted(FIRST), accepted(SECOND, handover=1))
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST])
    server.expect("ReleaseRequest", RELEASED)
    queue = client.start_request("smol", "Hi")[1]
    with pytest.raises(InternalServerError, match=r"could not hand the request over .*landed badly"):
        ids_of(queue)
    assert [one.handle for one in server.wait_for("ReleaseRequest")] == [SECOND]
    wait_until(lambda: "ZeroDivisionError" in caplog.text, "the fault is not logged")


def test_a_released_request_is_started_nowhere(client: Client, server: ScriptedServer) -> None:
    """It is released while no server answers: no copy of it is made when one does."""
    go = threading.Event()

    def start(request: Any) -> Any:
        assert go.wait(LIMIT)
        return Failure(grpc.StatusCode.UNAVAILABLE)

    server.expect("StartRequest", accepted(FIRST), start)
    server.expect("GeneratedElements", [tokens(IDS, 0, 3), LOST])
    server.expect("ReleaseRequest", RELEASED, RELEASED)
    handle, _queue = client.start_request("smol", "Hi")
    server.wait_for("StartRequest", 2)
    client.release_request(handle)
    go.set()
    server.wait_for("ReleaseRequest", 2)  # By the move, as it ends.
    assert len(server.requests("StartRequest")) == 2


def test_engines_that_shut_down_for_ever_end_it(client: Client, server: ScriptedServer) -> None:
    end = end_record(IDS, status=STOPPED, finish_reason=DRAINED)
    handles = [f"e{number}/i/1" for number in range(MOST_DRAINS + 1)]
    server.expect("StartRequest", *(accepted(handle, handover=number) for number, handle in enumerate(handles)))
    for handle in handles:
        steps = [tokens(IDS)] if handle == handles[0] else []
        server.expect("GeneratedElements", [*steps, ended(IDS, record=end)], when=lambda r, h=handle: r.handle == h)
    queue = client.start_request("smol", "Hi")[1]
    assert ids_of(queue) == IDS
    assert queue.finish_reason is FinishReason.DRAINED
    assert len(server.requests("StartRequest")) == MOST_DRAINS + 1
