"""Section 3: what elements and queues tell of a sequence besides its ids."""

from __future__ import annotations

import uuid
import zlib
from struct import pack

import pytest
from headrace import Client, ResultQueue
from headrace.types import FinishReason, GeneratedElements, GenerateStatus
from support.contract.answers import LONG, ended, start
from support.contract.places import MODEL, Place


def test_status_is_ordered_with_the_tokens(client: Client) -> None:
    """Before the first read: Generating first, then the truth; after it terminal only when nothing is unread."""
    handle, queue = ended(client)
    assert queue.GenerateStatus() is GenerateStatus.Generating
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    queue.Get()
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished
    assert client.get_request(handle).status is GenerateStatus.GenerateFinished


def test_generated_length_counts_what_was_produced(client: Client) -> None:
    _, queue = ended(client, 17)
    assert queue.GeneratedLength() == 17
    queue.Get()
    assert queue.GeneratedLength() == 17


def test_checksums_run_over_all_ids(client: Client) -> None:
    handle, queue = ended(client)
    elements = queue.Get()
    assert elements is not None
    ids = elements.ids_from_generate
    assert client.get_request(handle).sequences[0].generated_length == len(ids)
    # The client verified each element's own; here is what they must be.
    assert zlib.crc32(pack(f"<{len(ids)}I", *ids)) == zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids))


def test_eos_is_in_the_ids_and_not_in_the_text(client: Client) -> None:
    _, queue = ended(client, 3)
    plain = queue.Get()
    assert plain is not None
    eos = plain.ids_from_generate[1]
    _, queue = client.start_request(MODEL, ids=[1, 2, 3], max_new_tokens=3, do_sample=False, eos_token_id=[eos])
    elements = list(queue)
    ids = [t for e in elements for t in e.ids_from_generate]
    assert ids == plain.ids_from_generate[: plain.ids_from_generate.index(eos) + 1]
    assert queue.finish_reason is FinishReason.EOS


def test_bc010_a_finish_on_the_very_first_token(client: Client) -> None:
    _, queue = ended(client, 1)
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
        handle, queue = start(client, 9, do_sample=True, temperature=5.0, seed=seed, skip_special_tokens=False)
        elements = list(queue)
        ids = [t for e in elements for t in e.ids_from_generate]
        assert "".join(e.text for e in elements) == client.detokenize(MODEL, ids, skip_special_tokens=False).text
        client.release_request(handle)


def test_lists_by_token_have_the_length_of_the_ids(client: Client) -> None:
    _, queue = start(client, 40, logprobs=True)
    for elements in queue:
        assert len(elements.token_logprobs_list) == len(elements.ids_from_generate)
        assert all(value <= 0 for value in elements.token_logprobs_list)
        assert elements.log_probs_list == [] or len(elements.log_probs_list) == len(elements.ids_from_generate)


@pytest.mark.ranks
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
        assert [answer.opened.server for answer in answers] == ["gateway" if place.path == "gateway" else "e1"]


def test_statistics_are_whole_at_the_end(client: Client) -> None:
    _, queue = ended(client, 30)
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
