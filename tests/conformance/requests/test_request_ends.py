"""Section 2: stops, preemption, releases and faults, and calls that wait for the end."""

from __future__ import annotations

import threading

import pytest
from headrace import (
    Client,
    InternalServerError,
    RequestReleasedError,
)
from headrace.errors import DeadlineError
from headrace.types import FinishReason, GenerateStatus
from support.clocks.waiting import LIMIT, wait_until
from support.contract.answers import LONG, fill_batch, ids_of
from support.contract.places import BROKEN_MODEL, LONG_MODEL, MODEL, SIM, SMALL_POOL_MODEL, Place

TRIES = 10
"""Times that requests are to be in each other's way: on a busy machine the first may end before the last begins."""


@pytest.mark.sim
def test_preemption_is_invisible(place: Place, client: Client) -> None:
    """A pool for two of six requests: each gives the ids that it gives alone."""
    prompts = [[1, 2, 3 + i] for i in range(6)]
    alone = []
    for prompt in prompts:
        _, queue = client.start_request(SMALL_POOL_MODEL, ids=prompt, max_new_tokens=100, **LONG)
        alone.append(ids_of(queue))
    for _ in range(TRIES):
        queues = [client.start_request(SMALL_POOL_MODEL, ids=p, max_new_tokens=100, **LONG)[1] for p in prompts]
        assert [ids_of(queue) for queue in queues] == alone
        if preempted := sum(queue.RequestStatInfo()["preemptions"] or 0 for queue in queues):
            break
    assert preempted > 0
    if place.path == SIM:
        assert client.engine_stats(SMALL_POOL_MODEL)[0].host_blocks_used > 0, "what gave way was not swapped out"


def test_policy_return_ends_what_there_is_no_memory_for(client: Client) -> None:
    """A pool for two of six requests: whoever gives way ends there, and what it has stays readable."""
    prompts = [[1, 2, 3 + i] for i in range(6)]
    alone = []
    for prompt in prompts:
        _, queue = client.start_request(SMALL_POOL_MODEL, ids=prompt, max_new_tokens=100, **LONG)
        alone.append(ids_of(queue))
    config = {"max_new_tokens": 100, "interrupt_policy": "RETURN", **LONG}
    for _ in range(TRIES):
        queues = [client.start_request(SMALL_POOL_MODEL, ids=prompt, **config)[1] for prompt in prompts]
        found = [ids_of(queue) for queue in queues]
        reasons = [queue.finish_reason for queue in queues]
        if FinishReason.INTERRUPTED in reasons:
            break
    assert set(reasons) == {FinishReason.MAX_LENGTH, FinishReason.INTERRUPTED}
    for queue, ids, whole in zip(queues, found, alone, strict=True):
        interrupted = queue.finish_reason is FinishReason.INTERRUPTED
        assert interrupted == (queue.GenerateStatus() is GenerateStatus.GenerateInterrupted)
        assert ids == (whole[: len(ids)] if interrupted else whole)
        assert queue.RequestStatInfo()["preemptions"] == 0
    assert queues[0].finish_reason is FinishReason.MAX_LENGTH, "the first in precedence gives way to nobody"


def test_dropping_a_reader_stops_nothing(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2], max_new_tokens=150, **LONG)
    queue.Get()
    del queue
    assert client.sync_request(handle)[0].sequences[0].generated_length == 150


@pytest.mark.sim
def test_stop_returns_when_the_end_is_there(place: Place, client: Client) -> None:
    handle, queue = client.start_request(place.slowest, ids=[1, 2], **LONG)
    queue.Get()
    stopped = client.stop_request(handle)[0]
    assert stopped.status is GenerateStatus.GenerateFinished
    assert stopped.finish_reason is FinishReason.STOPPED
    for _ in queue:
        pass
    assert queue.GeneratedLength() == stopped.generated_length
    assert queue.GetNoWait() is None


def test_bc100_an_early_stop_returns_with_what_there_is(client: Client) -> None:
    """It waits for no token that was still to come, and nothing waits after it."""
    handle, queue = client.start_request(LONG_MODEL, ids=[1, 2], max_new_tokens=10_000, **LONG)
    read = 0
    while read < 20:
        elements = queue.Get()
        assert elements is not None
        read += len(elements.ids_from_generate)
    (stopped,) = client.stop_request(handle)
    assert stopped.finish_reason is FinishReason.STOPPED
    assert 20 <= stopped.generated_length < 10_000
    assert read + len(ids_of(queue)) == stopped.generated_length
    assert [queue.Get(), queue.GetWithTimeout(60_000), queue.GetNoWait()] == [None, None, None]
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    client.release_request(handle)


def test_stopping_an_ended_request_changes_nothing(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2], max_new_tokens=2, **LONG)
    client.sync_request(handle)
    assert client.stop_request(handle)[0].finish_reason is FinishReason.MAX_LENGTH
    assert client.stop_request(handle)[0].finish_reason is FinishReason.MAX_LENGTH
    assert len(ids_of(queue)) == 2


@pytest.mark.ranks
@pytest.mark.sim
def test_a_pending_request_can_be_stopped(place: Place, client: Client) -> None:
    """The batch is full: what waits behind it ends without a token."""
    running = fill_batch(client, place)
    handle, queue = client.start_request(place.slowest, ids=[1, 2], **LONG)
    client.stop_request(handle)
    assert queue.Get() is None
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert queue.finish_reason is FinishReason.STOPPED
    for other in running:
        client.stop_request(other)


@pytest.mark.sim
def test_bc101_stop_and_release_in_every_order(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], **LONG)
    client.stop_request(handle)
    client.stop_request(handle)
    client.release_request(handle)
    client.release_request(handle)
    running, _ = client.start_request(MODEL, ids=[1, 2], **LONG)
    client.release_request(running)
    for call in (client.stop_request, client.get_request, client.sync_request):
        with pytest.raises(RequestReleasedError):
            call(running)
    assert all(request.handle not in (handle, running) for request in client.list_requests())


def test_sync_waits_for_all_requests_to_a_model(client: Client) -> None:
    for tokens in (3, 30, 60):
        client.start_request(MODEL, ids=[1, 2], max_new_tokens=tokens, **LONG)
    states = client.sync_request(model=MODEL)
    assert sorted(state.sequences[0].generated_length for state in states) == [3, 30, 60]
    assert all(state.status is GenerateStatus.GenerateFinished for state in states)


def test_sync_blocks_nobody_else(place: Place, client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], **LONG)
    others, _ = [], client.start_request(MODEL, ids=[1, 2], **LONG)
    waiting = threading.Thread(target=lambda: client.sync_request(handle))
    waiting.start()
    for _ in range(5):
        others.append(ids_of(client.start_request(MODEL, ids=[4, 5], max_new_tokens=2, **LONG)[1]))
    client.stop_request(handle)
    waiting.join(LIMIT)
    assert not waiting.is_alive()
    assert all(len(ids) == 2 for ids in others)


def test_sync_ends_with_its_own_deadline_and_the_request_goes_on(client: Client) -> None:
    handle, _ = client.start_request(LONG_MODEL, ids=[1, 2], **LONG)
    with pytest.raises(DeadlineError):
        client.sync_request(handle, timeout=0.05)
    assert client.stop_request(handle)[0].finish_reason is FinishReason.STOPPED


def test_one_shot_generate_releases_at_its_end(client: Client) -> None:
    text = "".join(client.generate(MODEL, "Hello", max_new_tokens=8, **LONG))
    assert text
    wait_until(lambda: not client.list_requests(), "the request is still there")


def test_one_shot_generate_stops_when_dropped(client: Client) -> None:
    stream = client.generate(MODEL, "Hello", **LONG)
    next(iter(stream))
    stream.close()
    wait_until(lambda: not client.list_requests(), "the request is still there")


def test_a_fault_ends_its_request_and_no_other(client: Client) -> None:
    _, good = client.start_request(MODEL, ids=[1, 2], max_new_tokens=20, **LONG)
    _, bad = client.start_request(BROKEN_MODEL, ids=[1, 2], max_new_tokens=20)
    with pytest.raises(InternalServerError, match="finite"):
        bad.Get()
    assert bad.GenerateStatus() is GenerateStatus.InternalError
    assert bad.finish_reason is FinishReason.ERROR
    assert len(ids_of(good)) == 20
