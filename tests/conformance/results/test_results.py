"""Section 3: logs, queues and streams."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace import Client, InternalServerError, InvalidRequestError, RequestReleasedError, ResultQueue
from headrace.types import FinishReason, GeneratedElements, GenerateStatus
from support.clocks.waiting import LIMIT
from support.contract.answers import ended, fill_batch, start
from support.contract.places import BROKEN_MODEL, LONG_LENGTH, Place
from support.models.tiny_models import make_tiny_mistral


def _get_until_none(queue: ResultQueue) -> list[GeneratedElements]:
    return list(queue)


def _get_then_status(queue: ResultQueue) -> list[GeneratedElements]:
    """Loop 1: Get, then look at the status."""
    found = []
    while True:
        elements = queue.Get()
        if elements is not None:
            found.append(elements)
        if queue.GenerateStatus().terminal:
            return found


def _poll_then_get_while_running(queue: ResultQueue) -> list[GeneratedElements]:
    """Loop 2: poll once, then `while running: Get`."""
    found = []
    status = queue.GenerateStatus()
    while not status.terminal:
        elements = queue.Get()
        if elements is not None:
            found.append(elements)
        status = queue.GenerateStatus()
    return found


def _poll_until_the_end_then_get(queue: ResultQueue) -> list[GeneratedElements]:
    """Loop 3: poll until the end, then Get."""
    while not queue.GenerateStatus().terminal:
        pass
    elements = queue.Get()
    return [elements] if elements is not None else []


LOOPS = [_get_until_none, _get_then_status, _poll_then_get_while_running, _poll_until_the_end_then_get]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("begin", [start, ended])
def test_every_loop_gets_everything_once(
    client: Client,
    loop: Callable[[ResultQueue], list[GeneratedElements]],
    begin: Callable[[Client], tuple[str, ResultQueue]],
) -> None:
    handle, queue = begin(client)
    found = loop(queue)
    ids = [token for elements in found for token in elements.ids_from_generate]
    assert len(ids) == 20
    client.sync_request(handle)
    log = client.get_request(handle, from_position=0).elements
    assert log is not None
    assert ids == log.ids_from_generate
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert queue.finish_reason is FinishReason.MAX_LENGTH


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_ends_on_an_answer_of_one_token(
    client: Client, loop: Callable[[ResultQueue], list[GeneratedElements]]
) -> None:
    _, queue = ended(client, 1)
    assert [len(elements.ids_from_generate) for elements in loop(queue)] == [1]
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished


def test_calls_with_tokens_unread_return_all_as_one_element(client: Client) -> None:
    for read in (lambda q: q.Get(), lambda q: q.GetWithTimeout(5000), lambda q: q.GetNoWait()):
        _, queue = ended(client)
        elements = read(queue)
        assert elements is not None
        assert len(elements.ids_from_generate) == 20
        assert elements.position == 0


def test_calls_with_nothing_unread_on_a_running_sequence(place: Place, client: Client) -> None:
    """Behind a full batch no token comes."""
    running = fill_batch(client, place)
    _, queue = client.start_request(place.slowest, ids=[1, 2, 3], max_new_tokens=3)
    assert queue.GetNoWait() is None
    assert queue.GetWithTimeout(0) is None
    assert queue.GetWithTimeout(20) is None
    assert queue.GenerateStatus() is GenerateStatus.Init
    got: list[GeneratedElements | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.Get()))
    waiter.start()
    for other in running:
        client.stop_request(other)
    waiter.join(LIMIT)
    assert got
    assert got[0] is not None


def test_calls_with_nothing_unread_on_an_ended_sequence(client: Client) -> None:
    _, queue = ended(client)
    queue.Get()
    assert queue.Get() is None
    assert queue.GetWithTimeout(1000) is None
    assert queue.GetNoWait() is None


def test_calls_on_a_failed_sequence_raise_once_nothing_is_unread(client: Client) -> None:
    _, queue = client.start_request(BROKEN_MODEL, ids=[1, 2])
    client.sync_request(queue.handle)
    for read in (queue.Get, lambda: queue.GetWithTimeout(1000), queue.GetNoWait):
        with pytest.raises(InternalServerError):
            read()
    assert queue.GenerateStatus() is GenerateStatus.InternalError
    assert queue.GeneratedLength() == 0


def test_calls_after_release_raise(client: Client) -> None:
    handle, queue = start(client)
    queue.Get()
    client.release_request(handle)
    for read in (queue.Get, lambda: queue.GetWithTimeout(1000), queue.GetNoWait):
        with pytest.raises(RequestReleasedError):
            read()
    assert isinstance(queue.GenerateStatus(), GenerateStatus)
    assert queue.GeneratedLength() >= 1
    assert queue.RequestStatInfo()["context_token_length"] in (3, None)


def test_a_blocked_get_wakes_at_the_release(place: Place, client: Client) -> None:
    running = fill_batch(client, place)
    handle, queue = client.start_request(place.slowest, ids=[1, 2, 3], max_new_tokens=3)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            queue.Get()
        except RequestReleasedError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    client.release_request(handle)
    reader.join(LIMIT)
    assert len(raised) == 1
    for other in running:
        client.release_request(other)


def test_a_negative_timeout_is_a_value_error(client: Client) -> None:
    _, queue = start(client, 1)
    with pytest.raises(ValueError, match="-1"):
        queue.GetWithTimeout(-1)


@pytest.mark.sim
def test_several_readers_each_get_all_of_it(place: Place, client: Client) -> None:
    handle, first = start(client, 60)
    with place.connect() as elsewhere:
        second, third = client.open_queue(handle), elsewhere.open_queue(handle, from_position=0)
        read = [[t for e in queue for t in e.ids_from_generate] for queue in (first, second, third)]
    assert read[0] == read[1] == read[2]
    assert len(read[0]) == 60


def test_a_reader_begins_anywhere(client: Client) -> None:
    handle, queue = ended(client)
    whole = queue.Get()
    assert whole is not None
    part = client.open_queue(handle, from_position=7).Get()
    assert part is not None
    assert part.position == 7
    assert part.ids_from_generate == whole.ids_from_generate[7:]
    assert whole.text.endswith(part.text)
    assert client.open_queue(handle, from_position=20).Get() is None


def test_a_position_that_no_reader_can_be_at_is_out_of_range(client: Client) -> None:
    handle, _ = ended(client)
    with pytest.raises(InvalidRequestError) as refusal:
        client.open_queue(handle, from_position=21).Get()
    assert refusal.value.reason == "POSITION_OUT_OF_RANGE"


def test_one_get_returns_an_answer_of_ten_thousand_tokens(place: Place, client: Client, tmp_path: Path) -> None:
    """From a model that is small, so that they cost little."""
    path = make_tiny_mistral(tmp_path, num_hidden_layers=1, sliding_window=64, max_position_embeddings=LONG_LENGTH)
    client.install_model("quick", path=str(path), max_length=LONG_LENGTH, num_blocks=700, **place.settings)
    client.start_model("quick")
    handle, queue = client.start_request("quick", ids=[1, 2, 3], max_new_tokens=10_000, seed=1, ignore_eos=True)
    client.sync_request(handle)
    elements = queue.Get()
    assert elements is not None
    assert len(elements.ids_from_generate) == 10_000
    assert queue.GetNoWait() is None
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    client.release_request(handle)
    client.stop_model("quick")
    client.release_model("quick")
