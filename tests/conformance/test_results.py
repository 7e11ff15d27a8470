"""Section 3: logs, queues and streams."""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Callable
from struct import pack

import pytest
from headrace import Client, InternalServerError, InvalidRequestError, RequestReleasedError, ResultQueue
from headrace.types import FinishReason, GeneratedElements, GenerateStatus
from support.clocks.waiting import LIMIT
from support.contract.places import BROKEN_MODEL, LONG_MODEL, MODEL, Place

LONG = {"ignore_eos": True, "do_sample": False}


def _start(client: Client, tokens: int = 20, **fields: object) -> tuple[str, ResultQueue]:
    return client.start_request(MODEL, ids=[1, 2, 3], max_new_tokens=tokens, **{**LONG, **fields})  # type: ignore[arg-type]


def _ended(client: Client, tokens: int = 20, **fields: object) -> tuple[str, ResultQueue]:
    handle, queue = _start(client, tokens, **fields)
    client.sync_request(handle)
    return handle, queue


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
@pytest.mark.parametrize("begin", [_start, _ended])
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
    _, queue = _ended(client, 1)
    assert [len(elements.ids_from_generate) for elements in loop(queue)] == [1]
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished


def test_calls_with_tokens_unread_return_all_as_one_element(client: Client) -> None:
    for read in (lambda q: q.Get(), lambda q: q.GetWithTimeout(5000), lambda q: q.GetNoWait()):
        _, queue = _ended(client)
        elements = read(queue)
        assert elements is not None
        assert len(elements.ids_from_generate) == 20
        assert elements.position == 0


def test_calls_with_nothing_unread_on_a_running_sequence(client: Client) -> None:
    """Behind a full batch no token comes."""
    running = [client.start_request(MODEL, ids=[1, 2], **LONG)[0] for _ in range(8)]  # type: ignore[arg-type]
    _, queue = _start(client, 3)
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
    _, queue = _ended(client)
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
    handle, queue = _start(client)
    queue.Get()
    client.release_request(handle)
    for read in (queue.Get, lambda: queue.GetWithTimeout(1000), queue.GetNoWait):
        with pytest.raises(RequestReleasedError):
            read()
    assert isinstance(queue.GenerateStatus(), GenerateStatus)
    assert queue.GeneratedLength() >= 1
    assert queue.RequestStatInfo()["context_token_length"] in (3, None)


def test_a_blocked_get_wakes_at_the_release(client: Client) -> None:
    running = [client.start_request(MODEL, ids=[1, 2], **LONG)[0] for _ in range(8)]  # type: ignore[arg-type]
    handle, queue = _start(client)
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
    _, queue = _start(client, 1)
    with pytest.raises(ValueError, match="-1"):
        queue.GetWithTimeout(-1)


def test_status_is_ordered_with_the_tokens(client: Client) -> None:
    """Before the first read: Generating first, then the truth; after it terminal only when nothing is unread."""
    handle, queue = _ended(client)
    assert queue.GenerateStatus() is GenerateStatus.Generating
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    queue.Get()
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert client.get_request(handle).status is GenerateStatus.GenerateFinished


def test_generated_length_counts_what_was_produced(client: Client) -> None:
    _, queue = _ended(client, 17)
    assert queue.GeneratedLength() == 17
    queue.Get()
    assert queue.GeneratedLength() == 17


@pytest.mark.sim
def test_several_readers_each_get_all_of_it(place: Place, client: Client) -> None:
    handle, first = _start(client, 60)
    with place.connect() as elsewhere:
        second, third = client.open_queue(handle), elsewhere.open_queue(handle, from_position=0)
        read = [[t for e in queue for t in e.ids_from_generate] for queue in (first, second, third)]
    assert read[0] == read[1] == read[2]
    assert len(read[0]) == 60


def test_a_reader_begins_anywhere(client: Client) -> None:
    handle, queue = _ended(client)
    whole = queue.Get()
    assert whole is not None
    part = client.open_queue(handle, from_position=7).Get()
    assert part is not None
    assert part.position == 7
    assert part.ids_from_generate == whole.ids_from_generate[7:]
    assert whole.text.endswith(part.text)
    assert client.open_queue(handle, from_position=20).Get() is None


def test_a_position_that_no_reader_can_be_at_is_out_of_range(client: Client) -> None:
    handle, _ = _ended(client)
    with pytest.raises(InvalidRequestError) as refusal:
        client.open_queue(handle, from_position=21).Get()
    assert refusal.value.reason == "POSITION_OUT_OF_RANGE"


def test_one_get_returns_an_answer_of_ten_thousand_tokens(client: Client) -> None:
    handle, queue = client.start_request(LONG_MODEL, ids=[1, 2, 3], max_new_tokens=10_000, seed=1, ignore_eos=True)
    client.sync_request(handle)
    elements = queue.Get()
    assert elements is not None
    assert len(elements.ids_from_generate) == 10_000
    assert queue.GetNoWait() is None
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished


def test_checksums_run_over_all_ids(client: Client) -> None:
    handle, queue = _ended(client)
    elements = queue.Get()
    assert elements is not None
    ids = elements.ids_from_generate
    assert client.get_request(handle).sequences[0].generated_length == len(ids)
    # The client verified each element's own; here is what they must be.
    assert zlib.crc32(pack(f"<{len(ids)}I", *ids)) == zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids))


def test_eos_is_in_the_ids_and_not_in_the_text(client: Client) -> None:
    _, queue = _ended(client, 3)
    plain = queue.Get()
    assert plain is not None
    eos = plain.ids_from_generate[1]
    _, queue = client.start_request(MODEL, ids=[1, 2, 3], max_new_tokens=3, do_sample=False, eos_token_id=[eos])
    elements = list(queue)
    ids = [t for e in elements for t in e.ids_from_generate]
    assert ids == plain.ids_from_generate[: plain.ids_from_generate.index(eos) + 1]
    assert queue.finish_reason is FinishReason.EOS


def test_bc010_a_finish_on_the_very_first_token(client: Client) -> None:
    _, queue = _ended(client, 1)
    first = queue.Get()
    assert first is not None
    _, queue = client.start_request(
        MODEL, ids=[1, 2, 3], do_sample=False, eos_token_id=[first.ids_from_generate[0]], logprobs=True
    )
    elements = queue.Get()
    assert elements is not None
    assert elements.ids_from_generate == first.ids_from_generate
    assert len(elements.token_logprobs_list) == 1
    assert queue.Get() is None
    assert queue.finish_reason is FinishReason.EOS


def test_text_held_back_comes_with_the_end(client: Client) -> None:
    """Sampled bytes form no whole characters: joined, the pieces are the text of all ids, with U+FFFD at a cut."""
    for seed in range(12):
        handle, queue = _start(client, 9, do_sample=True, temperature=5.0, seed=seed, skip_special_tokens=False)
        elements = list(queue)
        ids = [t for e in elements for t in e.ids_from_generate]
        assert "".join(e.text for e in elements) == client.detokenize(MODEL, ids, skip_special_tokens=False).text
        client.release_request(handle)


def test_lists_by_token_have_the_length_of_the_ids(client: Client) -> None:
    _, queue = _start(client, 40, logprobs=True)
    for elements in queue:
        assert len(elements.token_logprobs_list) == len(elements.ids_from_generate)
        assert all(value <= 0 for value in elements.token_logprobs_list)
        assert elements.log_probs_list == [] or len(elements.log_probs_list) == len(elements.ids_from_generate)


@pytest.mark.sim
def test_bc081_prefix_reuse_is_told(client: Client) -> None:
    prompt = [5 + i % 300 for i in range(100)]
    own, other = str(uuid.uuid4()), str(uuid.uuid4())

    def reuse(**fields: object) -> tuple[GeneratedElements, ResultQueue]:
        _, queue = client.start_request(MODEL, ids=prompt, max_new_tokens=2, **fields, **LONG)  # type: ignore[arg-type]
        elements = queue.Get()
        assert elements is not None
        return elements, queue

    cold, _ = reuse(cache_salt=own)
    assert cold.prefix_cache_len == 0
    warm, queue = reuse(cache_salt=own)
    assert (warm.prefix_cache_len, warm.prefix_len_gpu, warm.prefix_len_cpu) == (96, 96, 0)
    assert queue.RequestStatInfo()["context_cached_length"] == 96
    assert reuse(cache_salt=other)[0].prefix_cache_len == 0
    assert reuse(cache_salt=own, use_prefix_cache=False)[0].prefix_cache_len == 0


def test_session_streams_tell_who_serves_them(place: Place) -> None:
    """A client that says no more than what the session is for is answered, and the stream ends well."""
    if place.path == "inprocess":
        pytest.skip("its sessions are seen through the client")
    import grpc
    from headrace_proto.v1 import session_pb2

    with grpc.insecure_channel(place.target) as channel:  # type: ignore[arg-type]
        call = channel.stream_stream(
            "/headrace.v1.RequestService/Session",
            request_serializer=session_pb2.SessionRequest.SerializeToString,
            response_deserializer=session_pb2.SessionResponse.FromString,
        )
        answers = call(iter([session_pb2.SessionRequest(options=session_pb2.SessionOptions())]))
        assert [answer.opened.server for answer in answers] == ["e1" if place.path == "direct" else "gateway"]


def test_statistics_are_whole_at_the_end(client: Client) -> None:
    _, queue = _ended(client, 30)
    stat = queue.RequestStatInfo()
    assert stat["context_token_length"] == 3
    assert stat["generated_token_length"] == 30
    times = [
        stat[name]
        for name in ("arrival_time", "scheduled_time", "first_token_time", "last_token_time", "finished_time")
    ]  # type: ignore[literal-required]
    assert None not in times
    assert times == sorted(times)
    assert stat["time_to_first_token"] == pytest.approx(times[2] - times[0], abs=1.0)
    assert stat["time_in_queue"] is not None
    assert stat["generate_tps"] > 0
    assert 0 < stat["inter_token_p50"] <= stat["inter_token_p99"]
    assert (stat["preemptions"], stat["handovers"]) == (0, 0)
