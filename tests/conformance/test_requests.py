"""Section 2: requests, from their start to their release."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace import (
    Client,
    ConflictError,
    InternalServerError,
    InvalidRequestError,
    NotFoundError,
    RequestReleasedError,
)
from headrace.errors import DeadlineError, EngineLostError
from headrace.types import FinishReason, GenerateStatus
from support.clocks.waiting import LIMIT, wait_until
from support.contract.places import BROKEN_MODEL, LONG_MODEL, MODEL, SIM, SMALL_POOL_MODEL, Place

LONG = {"ignore_eos": True, "do_sample": False}


def _ids(queue: object) -> list[int]:
    return [token for elements in queue for token in elements.ids_from_generate]  # type: ignore[attr-defined]


def test_statuses_follow_their_order(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2, 3], max_new_tokens=200, **LONG)
    seen = []
    while not seen or not seen[-1].terminal:
        status = client.get_request(handle).status
        if not seen or seen[-1] is not status:
            seen.append(status)
    order = list(GenerateStatus)
    assert seen == sorted(seen, key=order.index)
    assert seen[-1] is GenerateStatus.GenerateFinished
    assert len(_ids(queue)) == 200


def test_start_answers_what_became_of_the_request(client: Client) -> None:
    _, queue = client.start_request(MODEL, ids=[1, 2, 3], seed=7, temperature=0.5, max_new_tokens=4)
    accepted = queue.request
    assert accepted.prompt_token_count == 3
    assert accepted.seed == 7
    assert accepted.effective_config["temperature"] == 0.5
    assert accepted.effective_config["top_k"] == 0
    assert accepted.effective_config["max_length"] == 256
    assert accepted.effective_config["eos_token_id"] == [2, 0]
    assert len(accepted.prompt_hash) == 64
    assert accepted.waiting_ahead == 0
    assert not accepted.joined


def test_a_seed_is_drawn_and_reported(client: Client) -> None:
    seeds = {client.start_request(MODEL, ids=[1], max_new_tokens=1)[1].request.seed for _ in range(3)}
    assert len(seeds) == 3


def test_a_handle_names_engine_and_instance_and_is_unguessable(client: Client) -> None:
    first, second = (client.start_request(MODEL, ids=[1], max_new_tokens=1)[0] for _ in range(2))
    engine, instance, number = first.split("/")
    assert engine == "e1"
    assert second.split("/")[1] == instance
    assert len(number) == 32
    assert number != second.split("/")[2]


def test_the_same_key_and_content_start_one_request(client: Client) -> None:
    key = str(uuid.uuid4())
    first, _ = client.start_request(MODEL, ids=[1, 2], request_id=key, max_new_tokens=3)
    again, queue = client.start_request(MODEL, ids=[1, 2], request_id=key, max_new_tokens=3)
    assert again == first
    assert queue.request.joined
    assert len(_ids(queue)) <= 3
    assert len([r for r in client.list_requests() if r.request.request_id == key]) == 1


def test_retries_at_once_join_the_start_in_progress(client: Client) -> None:
    key = str(uuid.uuid4())
    with ThreadPoolExecutor(8) as pool:
        text = "Hello world " * 15
        starts = [
            pool.submit(lambda: client.start_request(MODEL, text, request_id=key, max_new_tokens=2)[0])
            for _ in range(8)
        ]
        assert len({start.result() for start in starts}) == 1


def test_the_same_key_with_other_content_is_a_conflict(client: Client) -> None:
    key = str(uuid.uuid4())
    client.start_request(MODEL, ids=[1, 2], request_id=key, max_new_tokens=3)
    with pytest.raises(ConflictError) as refusal:
        client.start_request(MODEL, ids=[1, 3], request_id=key, max_new_tokens=3)
    assert refusal.value.reason == "REQUEST_ID_REUSED"


def test_a_key_is_remembered_after_the_release(client: Client) -> None:
    key = str(uuid.uuid4())
    handle, _ = client.start_request(MODEL, ids=[1, 2], request_id=key, max_new_tokens=3)
    client.release_request(handle)
    with pytest.raises(RequestReleasedError) as refusal:  # A queue of it could never be read.
        client.start_request(MODEL, ids=[1, 2], request_id=key, max_new_tokens=3)
    assert refusal.value.details["metadata"]["handle"] == handle
    with pytest.raises(ConflictError):
        client.start_request(MODEL, ids=[1, 3], request_id=key, max_new_tokens=3)


def test_a_refused_start_leaves_its_key_free(client: Client) -> None:
    key = str(uuid.uuid4())
    with pytest.raises(InvalidRequestError):
        client.start_request(MODEL, ids=[999], request_id=key)
    client.start_request(MODEL, ids=[1], request_id=key, max_new_tokens=1)


def test_get_request_takes_a_handle_or_a_request_id(client: Client) -> None:
    key = str(uuid.uuid4())
    handle, _ = client.start_request(MODEL, ids=[1, 2], request_id=key, max_new_tokens=3, **LONG)
    found = client.get_request(request_id=key, wait=10)
    assert found.handle == handle
    assert found.status is GenerateStatus.GenerateFinished
    assert found.sequences[0].finish_reason is FinishReason.MAX_LENGTH
    with pytest.raises(NotFoundError):
        client.get_request(request_id="never-used")


def test_get_request_with_a_position_waits_for_something_unread(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], max_new_tokens=5, **LONG)
    elements = client.get_request(handle, wait=10, from_position=0).elements
    assert elements is not None
    assert elements.position == 0
    client.sync_request(handle)
    rest = client.get_request(handle, from_position=2).elements
    assert rest is not None
    assert (rest.position, len(rest.ids_from_generate)) == (2, 3)
    assert client.get_request(handle, wait=10, from_position=5).elements is None


def test_running_out_of_wait_is_no_error(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], **LONG)
    assert not client.get_request(handle, wait=0.01).status.terminal


def test_a_position_beyond_the_log_is_out_of_range(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], max_new_tokens=2, **LONG)
    client.sync_request(handle)
    with pytest.raises(InvalidRequestError) as refusal:
        client.get_request(handle, from_position=3)
    assert refusal.value.reason == "POSITION_OUT_OF_RANGE"


@pytest.mark.sim
def test_preemption_is_invisible(place: Place, client: Client) -> None:
    """A pool for two of six requests: each gives the ids that it gives alone."""
    prompts = [[1, 2, 3 + i] for i in range(6)]
    alone = []
    for prompt in prompts:
        _, queue = client.start_request(SMALL_POOL_MODEL, ids=prompt, max_new_tokens=100, **LONG)
        alone.append(_ids(queue))
    queues = [client.start_request(SMALL_POOL_MODEL, ids=p, max_new_tokens=100, **LONG)[1] for p in prompts]
    assert [_ids(queue) for queue in queues] == alone
    assert sum(queue.RequestStatInfo()["preemptions"] or 0 for queue in queues) > 0
    if place.path == SIM:
        assert client.engine_stats(SMALL_POOL_MODEL)[0].host_blocks_used > 0, "what gave way was not swapped out"


def test_policy_return_ends_what_there_is_no_memory_for(client: Client) -> None:
    """A pool for two of six requests: whoever gives way ends there, and what it has stays readable."""
    prompts = [[1, 2, 3 + i] for i in range(6)]
    alone = []
    for prompt in prompts:
        _, queue = client.start_request(SMALL_POOL_MODEL, ids=prompt, max_new_tokens=100, **LONG)
        alone.append(_ids(queue))
    config = {"max_new_tokens": 100, "interrupt_policy": "RETURN", **LONG}
    queues = [client.start_request(SMALL_POOL_MODEL, ids=prompt, **config)[1] for prompt in prompts]
    found = [_ids(queue) for queue in queues]
    reasons = [queue.finish_reason for queue in queues]
    assert set(reasons) == {FinishReason.MAX_LENGTH, FinishReason.INTERRUPTED}
    for queue, ids, whole in zip(queues, found, alone, strict=True):
        interrupted = queue.finish_reason is FinishReason.INTERRUPTED
        assert interrupted == (queue.GenerateStatus() is GenerateStatus.GenerateInterrupted)
        assert ids == (whole[: len(ids)] if interrupted else whole)
        assert queue.RequestStatInfo()["preemptions"] == 0
    assert queues[0].finish_reason is FinishReason.MAX_LENGTH, "the first in rank gives way to nobody"


def test_dropping_a_reader_stops_nothing(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2], max_new_tokens=150, **LONG)
    queue.Get()
    del queue
    assert client.sync_request(handle)[0].sequences[0].generated_length == 150


@pytest.mark.sim
def test_stop_returns_when_the_end_is_there(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2], **LONG)
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
    assert read + len(_ids(queue)) == stopped.generated_length
    assert [queue.Get(), queue.GetWithTimeout(60_000), queue.GetNoWait()] == [None, None, None]
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    client.release_request(handle)


def test_stopping_an_ended_request_changes_nothing(client: Client) -> None:
    handle, queue = client.start_request(MODEL, ids=[1, 2], max_new_tokens=2, **LONG)
    client.sync_request(handle)
    assert client.stop_request(handle)[0].finish_reason is FinishReason.MAX_LENGTH
    assert client.stop_request(handle)[0].finish_reason is FinishReason.MAX_LENGTH
    assert len(_ids(queue)) == 2


@pytest.mark.sim
def test_a_pending_request_can_be_stopped(client: Client) -> None:
    """The batch is full: what waits behind it ends without a token."""
    running = [client.start_request(MODEL, ids=[1, 2], **LONG)[0] for _ in range(8)]
    handle, queue = client.start_request(MODEL, ids=[1, 2], **LONG)
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


@pytest.mark.parametrize("call", ["stop_request", "get_request", "sync_request"])
@pytest.mark.parametrize("kind", ["unknown", "malformed"])
def test_unknown_handles_are_not_found_at_once(client: Client, call: str, kind: str) -> None:
    handle, _ = client.start_request(MODEL, ids=[1], max_new_tokens=1)
    strange = handle[:-32] + "0" * 32 if kind == "unknown" else "nonsense"
    with pytest.raises(NotFoundError):
        getattr(client, call)(strange)
    client.release_request(strange)


def test_a_handle_of_an_earlier_instance_is_lost(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1], max_new_tokens=1)
    engine, instance, number = handle.split("/")
    lost = f"{engine}/{instance[::-1]}/{number}"
    with pytest.raises(EngineLostError):
        client.get_request(lost)
    client.release_request(lost)


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
        others.append(_ids(client.start_request(MODEL, ids=[4, 5], max_new_tokens=2, **LONG)[1]))
    client.stop_request(handle)
    waiting.join(LIMIT)
    assert not waiting.is_alive()
    assert all(len(ids) == 2 for ids in others)


def test_sync_ends_with_its_own_deadline_and_the_request_goes_on(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], **LONG)
    with pytest.raises(DeadlineError):
        client.sync_request(handle, timeout=0.05)
    assert client.stop_request(handle)[0].finish_reason is FinishReason.STOPPED


def test_list_requests_newest_first(client: Client) -> None:
    handles = [client.start_request(MODEL, ids=[1], max_new_tokens=1)[0] for _ in range(3)]
    client.sync_request(model=MODEL)
    assert [request.handle for request in client.list_requests()] == handles[::-1]
    running, _ = client.start_request(MODEL, ids=[1], **LONG)
    assert [request.handle for request in client.list_requests(running_only=True)] == [running]
    assert client.list_requests("long") == []


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
    assert len(_ids(good)) == 20


def test_requests_belong_to_their_owner(place: Place, client: Client) -> None:
    """To another owner a request does not exist. A gateway without API keys makes all one owner, and refuses a name."""
    handle, _ = client.start_request(MODEL, ids=[1], max_new_tokens=1)
    with place.connect(owner="somebody else") as other:
        if place.path == "gateway":
            for call in (other.get_request, other.stop_request, other.sync_request, other.release_request):
                with pytest.raises(InvalidRequestError, match='owner = "somebody else" is not supported') as refusal:
                    call(handle)
                assert refusal.value.reason == "NOT_SUPPORTED"
            return
        assert other.list_requests() == []
        for call in (other.get_request, other.stop_request, other.sync_request):
            with pytest.raises(NotFoundError):
                call(handle)
        other.release_request(handle)
    assert client.get_request(handle).handle == handle
