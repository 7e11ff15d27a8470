"""The client's calls about requests: what each asks, and what it makes of the answer."""

from __future__ import annotations

from typing import Any

import grpc
import headrace
import pytest
from headrace import (
    Client,
    FinishReason,
    GenerateStatus,
    InvalidRequestError,
    NotFoundError,
    RequestReleasedError,
)
from headrace_proto.v1 import (
    generation_pb2,
    request_pb2,
    request_service_pb2,
)
from support.scripted.replies import Failure
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import (
    HANDLE,
    accepted,
    end_record,
    ended,
    ended_info,
    got,
    running_info,
    state,
    tokens,
)

IDS = [5, 6, 7]
RELEASED = request_service_pb2.ReleaseRequestResponse()


def test_start_request_answers_handle_and_queue(client: Client, server: ScriptedServer) -> None:
    config = generation_pb2.GenerationConfig(temperature=0.5)
    server.expect("StartRequest", accepted(effective_config=config, warnings=[generation_pb2.Warning(field="top_p")]))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS)])
    handle, queue = client.start_request("smol", messages=[{"role": "user", "content": "Hi"}], temperature=0.5, seed=0)
    assert handle == queue.handle == HANDLE
    assert (queue.request_id, queue.index, queue.choices) == ("r1", 0, [queue])
    assert queue.request.effective_config == {"temperature": 0.5}
    assert queue.request.warnings[0].field == "top_p"
    assert [one.ids_from_generate for one in queue] == [IDS]
    request = server.requests("StartRequest")[0]
    assert request.model_name == "smol"
    assert request.config.HasField("seed")


def test_several_sequences_are_choices(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted(effective_config=generation_pb2.GenerationConfig(n=3)))
    for index in range(3):
        ids = [index, index + 1]
        server.expect("GeneratedElements", [tokens(ids), ended(ids)], when=lambda r, index=index: r.index == index)
    _, queue = client.start_request("smol", "Hello", n=3)
    assert queue.choices[0] is queue
    assert all(choice.choices == queue.choices for choice in queue.choices)
    found = [[token for one in choice for token in one.ids_from_generate] for choice in queue.choices]
    assert found == [[0, 1], [1, 2], [2, 3]]


def test_several_queues_read_one_sequence_independently(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect(
        "GeneratedElements", [tokens(IDS), ended(IDS)], [tokens(IDS), ended(IDS)], [tokens(IDS, 2), ended(IDS)]
    )
    server.expect("GetRequest", got(ended_info(IDS)), got(ended_info(IDS)))
    handle, queue = client.start_request("smol", "Hello")
    assert queue.Get() is not None
    second = client.open_queue(handle)
    assert second.Get().ids_from_generate == IDS
    third = client.open_queue(handle, from_position=2)
    assert third.Get().ids_from_generate == IDS[2:]
    assert [queue.Get(), second.Get(), third.Get()] == [None] * 3


def test_one_get_takes_ten_thousand_tokens_of_an_ended_request(client: Client, server: ScriptedServer) -> None:
    ids = list(range(10_000))
    server.expect("GetRequest", got(ended_info(ids)))
    server.expect("GeneratedElements", [*[tokens(ids, at, at + 500) for at in range(0, len(ids), 500)], ended(ids)])
    queue = client.open_queue(HANDLE)
    elements = queue.Get()
    assert elements.ids_from_generate == ids
    assert queue.Get() is None


@pytest.mark.parametrize("loop", ["get then status", "poll once then get", "poll to the end then get", "iterate"])
def test_user_loops_are_right_on_an_ended_request(client: Client, server: ScriptedServer, loop: str) -> None:
    server.expect("GetRequest", got(ended_info(IDS, text="…")))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS, "…")])
    queue = client.open_queue(HANDLE)
    found = LOOPS[loop](queue)
    assert [token for one in found for token in one.ids_from_generate] == IDS
    assert "".join(one.text for one in found).endswith("…")
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished


@pytest.mark.parametrize("loop", ["get then status", "poll once then get", "poll to the end then get", "iterate"])
def test_user_loops_are_right_on_a_running_request(client: Client, server: ScriptedServer, loop: str) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [*[tokens(IDS, at, at + 1) for at in range(3)], ended(IDS)])
    _, queue = client.start_request("smol", "Hello")
    found = LOOPS[loop](queue)
    assert [token for one in found for token in one.ids_from_generate] == IDS


def get_then_status(queue: headrace.ResultQueue) -> list[Any]:
    """Reads, then looks whether it was the last."""
    found = []
    while True:
        found.append(queue.Get())
        if queue.GenerateStatus().terminal:
            return [one for one in found if one is not None]


def poll_once_then_get(queue: headrace.ResultQueue) -> list[Any]:
    """Looks before each read."""
    found = []
    while not queue.GenerateStatus().terminal:
        found.append(queue.Get())
    return [one for one in found if one is not None]


def poll_to_the_end_then_get(queue: headrace.ResultQueue) -> list[Any]:
    """Looks until it ended, then reads once."""
    while not queue.GenerateStatus().terminal:
        pass
    return [queue.Get()]


LOOPS = {
    "get then status": get_then_status,
    "poll once then get": poll_once_then_get,
    "poll to the end then get": poll_to_the_end_then_get,
    "iterate": list,
}


def test_a_queue_of_a_sequence_that_is_not_there_is_refused(client: Client, server: ScriptedServer) -> None:
    server.expect("GetRequest", got(running_info()), Failure(grpc.StatusCode.NOT_FOUND, reason="UNKNOWN_REQUEST"))
    with pytest.raises(InvalidRequestError, match="index = 3: the request has 1 sequences"):
        client.open_queue(HANDLE, index=3)
    with pytest.raises(RequestReleasedError):
        client.open_queue(HANDLE)


@pytest.mark.parametrize(
    "place", [{"from_position": -1}, {"from_position": 2**32}, {"from_position": "0"}, {"index": "0"}, {"index": -1}]
)
def test_an_index_that_no_sequence_has_is_refused_locally(
    client: Client, server: ScriptedServer, place: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{next(iter(place))} = "):
        client.open_queue(HANDLE, **place)
    server.expect("ReleaseRequest", request_service_pb2.ReleaseRequestResponse())
    client.release_request(HANDLE)


def test_a_position_beyond_the_end_is_refused_by_the_server(client: Client, server: ScriptedServer) -> None:
    beyond = Failure(grpc.StatusCode.OUT_OF_RANGE, "position 9 is beyond the end, 3.", reason="POSITION_OUT_OF_RANGE")
    server.expect("GetRequest", got(ended_info(IDS)))
    server.expect("GeneratedElements", [beyond])
    queue = client.open_queue(HANDLE, from_position=9)
    with pytest.raises(InvalidRequestError, match="beyond the end"):
        queue.Get()


def test_stop_request_answers_the_ends(client: Client, server: ScriptedServer) -> None:
    stopped = end_record(IDS, finish_reason=request_pb2.FINISH_REASON_STOPPED)
    info = request_pb2.SequenceInfo(status=stopped.status, generated_length=3, end=stopped)
    server.expect("StopRequest", request_service_pb2.StopRequestResponse(sequences=[info]))
    (found,) = client.stop_request(HANDLE)
    assert (found.finish_reason, found.generated_length) == (FinishReason.STOPPED, 3)
    assert found.stat["generate_tps"] == 50.0


def test_calls_on_a_released_handle_raise(client: Client, server: ScriptedServer) -> None:
    gone = Failure(grpc.StatusCode.NOT_FOUND, "no such request.", reason="UNKNOWN_REQUEST")
    server.expect("StopRequest", gone)
    server.expect("SyncRequest", gone)
    server.expect("GetRequest", gone, gone)
    for call in (client.stop_request, client.sync_request, client.get_request):
        with pytest.raises(RequestReleasedError):
            call(HANDLE)
    with pytest.raises(NotFoundError) as caught:
        client.get_request(request_id="r1")
    assert type(caught.value) is NotFoundError


def test_sync_request_waits_for_one_or_for_all_of_a_model(client: Client, server: ScriptedServer) -> None:
    answer = request_service_pb2.SyncRequestResponse(requests=[state(HANDLE, ended_info(IDS))])
    server.expect("SyncRequest", answer, answer)
    assert client.sync_request(HANDLE)[0].handle == HANDLE
    assert client.sync_request(model="smol")[0].sequences[0].finish_reason is FinishReason.EOS
    assert [r.WhichOneof("target") for r in server.requests("SyncRequest")] == ["handle", "model_name"]
    for wrong in ({}, {"handle": HANDLE, "model": "smol"}):
        with pytest.raises(TypeError, match="exactly one of handle and model"):
            client.sync_request(**wrong)


def test_get_request_with_tokens_and_prompt_logprobs(client: Client, server: ScriptedServer) -> None:
    logprobs = request_pb2.Logprobs(token_logprobs=[-0.5], top_count=1, top_ids=[9], top_logprobs=[-0.25])
    prompt = request_pb2.PromptLogprobs(position=1, token_ids=[4], logprobs=logprobs)
    elements = tokens(IDS, 1).elements
    server.expect("GetRequest", got(running_info(3), elements=elements, prompt_logprobs=prompt))
    info = client.get_request(HANDLE, wait=1.5, index=0, from_position=1, prompt_logprobs_from=0)
    request = server.requests("GetRequest")[0]
    assert request.wait.ToMilliseconds() == 1500
    assert request.HasField("prompt_logprobs_from")
    assert (info.elements.ids_from_generate, info.elements.position) == (IDS[1:], 1)
    assert (info.prompt_logprobs.ids, info.prompt_logprobs.log_probs_list) == ([4], [[(9, -0.25)]])
    assert (info.status, info.sequences[0].generated_length) == (GenerateStatus.Generating, 3)


def test_get_request_arguments_are_checked(client: Client) -> None:
    with pytest.raises(TypeError, match="exactly one of handle and request_id"):
        client.get_request()
    with pytest.raises(InvalidRequestError, match="from_position"):
        client.get_request(HANDLE, index=1)


def test_list_requests_turns_the_pages(client: Client, server: ScriptedServer) -> None:
    page = request_service_pb2.ListRequestsResponse
    server.expect("ListRequests", page(requests=[state("a/b/1")], next_page_token="t"), page(requests=[state("a/b/2")]))
    found = client.list_requests("smol", running_only=True)
    assert [one.handle for one in found] == ["a/b/1", "a/b/2"]
    assert [one.page_token for one in server.requests("ListRequests")] == ["", "t"]
    assert all(one.model_name == "smol" and one.running_only for one in server.requests("ListRequests"))


def test_a_list_names_the_engines_that_it_lacks(client: Client, server: ScriptedServer) -> None:
    page = request_service_pb2.ListRequestsResponse
    failure = Failure(grpc.StatusCode.UNAVAILABLE, reason="ENGINE_UNREACHABLE")
    away = [request_service_pb2.MissingEngine(engine="e2", failure=failure.status())]
    server.expect("ListRequests", page(requests=[state("e1/b/1")], next_page_token="t", missing=away), page())
    found = client.list_requests()
    assert [one.handle for one in found] == ["e1/b/1"]
    assert {name: error.reason for name, error in found.missing.items()} == {"e2": "ENGINE_UNREACHABLE"}


def test_the_owner_is_sent_with_every_call_about_requests(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [ended([])])
    server.expect("ReleaseRequest", RELEASED)
    with Client(server.address, owner="ann") as client:
        client.start_request("smol", "Hello")[1].Get()
    assert {request.owner for _, request in server.calls} == {"ann"}


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 0, "top_k": 0, "min_length": 0},
        {"temperature": 0, "top_p": 0.0, "presence_penalty": 0.0},
        {"do_sample": False, "early_stopping": False, "use_prefix_cache": False},
        {},
    ],
)
def test_bc195_explicit_zeros_reach_the_server_alone(
    client: Client, server: ScriptedServer, fields: dict[str, Any]
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [ended([])])
    client.start_request("smol", "Hello", **fields)[1].Get()
    config = server.requests("StartRequest")[0].config
    assert {field.name: value for field, value in config.ListFields()} == fields
