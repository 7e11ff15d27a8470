"""Section 2: requests, from their start to their release."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace import (
    Client,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RequestReleasedError,
)
from headrace.errors import EngineLostError
from headrace.types import FinishReason, GenerateStatus
from support.contract.answers import LONG, ids_of
from support.contract.places import LONG_MODEL, MODEL, Place


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
    assert len(ids_of(queue)) == 200


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
    assert len(ids_of(queue)) <= 3
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
    handle, _ = client.start_request(LONG_MODEL, ids=[1, 2], **LONG)
    assert not client.get_request(handle, wait=0.01).status.terminal


def test_a_position_beyond_the_log_is_out_of_range(client: Client) -> None:
    handle, _ = client.start_request(MODEL, ids=[1, 2], max_new_tokens=2, **LONG)
    client.sync_request(handle)
    with pytest.raises(InvalidRequestError) as refusal:
        client.get_request(handle, from_position=3)
    assert refusal.value.reason == "POSITION_OUT_OF_RANGE"


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


def test_list_requests_newest_first(client: Client) -> None:
    handles = [client.start_request(MODEL, ids=[1], max_new_tokens=1)[0] for _ in range(3)]
    client.sync_request(model=MODEL)
    assert [request.handle for request in client.list_requests()] == handles[::-1]
    assert client.list_requests(LONG_MODEL) == []
    running, _ = client.start_request(LONG_MODEL, ids=[1], **LONG)
    for asked in ({"running_only": True}, {"model": LONG_MODEL}):
        assert [request.handle for request in client.list_requests(**asked)] == [running]  # type: ignore[arg-type]


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
