"""The table of ResultQueue, row by row and column by column, over a real channel."""

from __future__ import annotations

import threading

import grpc
import pytest
from headrace import (
    Client,
    EngineLostError,
    FinishReason,
    GenerateStatus,
    InternalServerError,
    RequestReleasedError,
    ResultQueue,
    UnavailableError,
)
from headrace_proto.v1 import request_pb2, request_service_pb2
from support.clocks.client_clock import FakeClock
from support.clocks.waiting import LIMIT, wait_until
from support.scripted.replies import Failure, Hang
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import (
    GENERATING,
    HANDLE,
    accepted,
    ended,
    ended_info,
    failed_end,
    got,
    running_info,
    state,
    status_only,
    text_of,
    tokens,
)

IDS = [5, 6, 7, 8]
READS = ["Get", "GetWithTimeout", "GetNoWait"]


def read(queue: ResultQueue, how: str) -> object:
    """One of the three reads; the one with a timeout would wait for a minute."""
    return queue.GetWithTimeout(60_000) if how == "GetWithTimeout" else getattr(queue, how)()


def start(client: Client, server: ScriptedServer, *steps: object) -> ResultQueue:
    """A queue whose stream plays these steps."""
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", list(steps))
    queue = client.start_request("smol", "Hello")[1]
    server.wait_for("GeneratedElements")
    return queue


def ended_by_now(queue: ResultQueue) -> None:
    """Waits until the end has arrived, and everything was read."""
    wait_until(lambda: queue.GenerateStatus().terminal, "the end does not come")


def arrived(queue: ResultQueue, length: int) -> None:
    """Waits until so many tokens have arrived."""
    wait_until(lambda: queue.GeneratedLength() >= length, "not all ids come")


@pytest.mark.parametrize("how", READS)
def test_unread_tokens_come_as_one_element(client: Client, server: ScriptedServer, how: str) -> None:
    queue = start(client, server, tokens(IDS, 0, 1), tokens(IDS, 1, 3), Hang())
    arrived(queue, 3)
    elements = read(queue, how)
    assert (elements.ids_from_generate, elements.text, elements.position) == ([5, 6, 7], text_of([5, 6, 7]), 0)
    assert queue.GetNoWait() is None


def test_get_blocks_while_nothing_is_unread_and_the_request_runs(client: Client, server: ScriptedServer) -> None:
    go = threading.Event()
    queue = start(client, server, status_only(request_pb2.GENERATE_STATUS_INIT), go, tokens(IDS), ended(IDS))
    taken: list[object] = []
    reader = threading.Thread(target=lambda: taken.append(queue.Get()))
    reader.start()
    assert not taken
    go.set()
    reader.join(LIMIT)
    assert taken[0].ids_from_generate == IDS


def test_reads_with_a_limit_return_none_while_the_request_runs(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    queue = start(client, server, Hang())
    before = clock.now
    assert queue.GetWithTimeout(0) is None
    assert queue.GetNoWait() is None
    assert clock.now == before
    assert queue.GetWithTimeout(1500) is None
    assert clock.now == before + 1.5


def test_a_negative_timeout_is_a_value_error(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, tokens(IDS), ended(IDS))
    with pytest.raises(ValueError, match="-1"):
        queue.GetWithTimeout(-1)
    with pytest.raises(ValueError, match="nan"):
        queue.GetWithTimeout(float("nan"))
    for wrong in ("5", None, True):
        with pytest.raises(
            TypeError, match=rf"GetWithTimeout\(timeout_ms={wrong!r}\): must be a number of milliseconds"
        ):
            queue.GetWithTimeout(wrong)
    assert queue.Get() is not None


@pytest.mark.parametrize("how", READS)
def test_an_ended_request_without_unread_tokens_answers_none(
    client: Client, server: ScriptedServer, clock: FakeClock, how: str
) -> None:
    queue = start(client, server, tokens(IDS), ended(IDS))
    assert queue.Get() is not None
    assert queue.Get() is None
    before = clock.now
    assert read(queue, how) is None
    assert clock.now == before
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert queue.finish_reason is FinishReason.EOS


@pytest.mark.parametrize("how", READS)
def test_after_an_internal_error_tokens_come_before_the_error(client: Client, server: ScriptedServer, how: str) -> None:
    queue = start(client, server, tokens(IDS, 0, 2), ended(IDS[:2], record=failed_end(IDS[:2])))
    assert queue.Get().ids_from_generate == IDS[:2]
    ended_by_now(queue)
    for _ in range(2):
        with pytest.raises(InternalServerError, match="NaN") as caught:
            read(queue, how)
    assert caught.value.reason == "ENGINE_FAULT"
    assert queue.GenerateStatus() is GenerateStatus.InternalError
    assert queue.finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("how", READS)
def test_a_lost_engine_ends_the_queue_with_what_it_has(client: Client, server: ScriptedServer, how: str) -> None:
    lost = Failure(grpc.StatusCode.NOT_FOUND, "engine e1 was restarted.", reason="ENGINE_LOST")
    queue = start(client, server, tokens(IDS, 0, 2), lost)
    assert queue.Get().ids_from_generate == IDS[:2]
    with pytest.raises(EngineLostError, match="restarted"):
        queue.Get()
    with pytest.raises(EngineLostError):
        read(queue, how)
    assert queue.GenerateStatus() is GenerateStatus.InternalError
    assert queue.finish_reason is FinishReason.ENGINE_LOST


@pytest.mark.parametrize("how", READS)
def test_after_release_every_read_raises(client: Client, server: ScriptedServer, how: str) -> None:
    queue = start(client, server, tokens(IDS), Hang())
    arrived(queue, 4)
    server.expect("ReleaseRequest", request_service_pb2.ReleaseRequestResponse())
    client.release_request(HANDLE)
    with pytest.raises(RequestReleasedError):
        read(queue, how)
    with pytest.raises(RequestReleasedError):
        next(iter(queue))


def test_after_release_the_last_known_figures_stay(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, tokens(IDS), ended(IDS))
    arrived(queue, 4)
    wait_until(lambda: queue.GenerateStatus().terminal, "the end does not come")
    server.expect("ReleaseRequest", request_service_pb2.ReleaseRequestResponse())
    client.release_request(HANDLE)
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert queue.GeneratedLength() == 4
    assert queue.RequestStatInfo()["generated_token_length"] == 4


def test_release_by_another_client_reaches_the_queue(client: Client, server: ScriptedServer) -> None:
    gone = Failure(grpc.StatusCode.NOT_FOUND, "no such request.", reason="UNKNOWN_REQUEST")
    queue = start(client, server, gone)
    with pytest.raises(RequestReleasedError):
        queue.Get()


def test_a_blocked_get_wakes_on_release(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, Hang())
    server.wait_for_streams(1)
    server.expect("ReleaseRequest", request_service_pb2.ReleaseRequestResponse())
    errors = blocked_get(queue, lambda: client.release_request(HANDLE))
    assert isinstance(errors[0], RequestReleasedError)
    server.wait_for_streams(0)


def test_a_blocked_get_wakes_on_close(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, Hang())
    server.wait_for_streams(1)
    errors = blocked_get(queue, client.close)
    assert isinstance(errors[0], UnavailableError)
    assert errors[0].reason == "CLIENT_CLOSED"
    server.wait_for_streams(0)


def blocked_get(queue: ResultQueue, wake: object) -> list[BaseException]:
    """What a Get in another thread raises when something else happens."""
    errors: list[BaseException] = []

    def block() -> None:
        try:
            queue.Get()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    wake()
    thread.join(LIMIT)
    assert not thread.is_alive()
    return errors


def test_text_held_back_until_the_end_is_an_element_without_ids(client: Client, server: ScriptedServer) -> None:
    queue = start(client, server, tokens(IDS), ended(IDS, text="…"))
    elements = list(queue)
    assert "".join(one.text for one in elements) == text_of(IDS) + "…"
    assert [token for one in elements for token in one.ids_from_generate] == IDS
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished


def test_the_status_goes_its_course(client: Client, server: ScriptedServer) -> None:
    go = [threading.Event() for _ in range(3)]
    queue = start(
        client,
        server,
        go[0],
        status_only(request_pb2.GENERATE_STATUS_CONTEXT_FINISHED),
        go[1],
        status_only(GENERATING),
        go[2],
        ended([]),
    )
    assert queue.GenerateStatus() is GenerateStatus.Init
    go[0].set()
    wait_until(lambda: queue.GenerateStatus() is GenerateStatus.ContextFinished, "the prompt is never computed")
    go[1].set()
    wait_until(lambda: queue.GenerateStatus() is GenerateStatus.Generating, "no id comes")
    go[2].set()
    wait_until(lambda: queue.GenerateStatus() is GenerateStatus.GenerateFinished, "the end does not come")
    assert queue.Get() is None


def test_statistics_are_asked_while_running_and_final_after(client: Client, server: ScriptedServer) -> None:
    go = threading.Event()
    queue = start(client, server, tokens(IDS), go, ended(IDS))
    info = running_info(2)
    info.stat.arrival_time.FromMilliseconds(1_700_000_000_123)
    info.stat.time_to_first_token.FromMilliseconds(250)
    server.expect("GetRequest", got(info))
    stat = queue.RequestStatInfo()
    assert (stat["arrival_time"], stat["time_to_first_token"]) == (1_700_000_000_123, 250)
    assert stat["finished_time"] is None
    go.set()
    list(queue)
    assert queue.RequestStatInfo()["generate_tps"] == 50.0


def test_sync_request_updates_the_queue_of_an_ended_request(
    client: Client, server: ScriptedServer, clock: FakeClock
) -> None:
    ids = list(range(100))
    go = threading.Event()
    queue = start(client, server, go, tokens(ids), ended(ids))
    server.expect("SyncRequest", request_service_pb2.SyncRequestResponse(requests=[state(HANDLE, ended_info(ids))]))
    infos = client.sync_request(HANDLE)
    assert infos[0].status is GenerateStatus.GenerateFinished
    assert queue.GeneratedLength() == 100
    # Nothing has arrived yet, and still the read without waiting has all of it: it is in the log.
    clock.when_owner_waits = go.set
    assert queue.GetNoWait().ids_from_generate == ids
