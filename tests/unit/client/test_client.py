"""Every method of the client: what it asks, and what it makes of the answer."""

from __future__ import annotations

import gc
import threading
from datetime import UTC, datetime
from typing import Any

import grpc
import headrace
import pytest
from fake_clock import FakeClock
from headrace import (
    Client,
    FinishReason,
    GenerateStatus,
    InvalidRequestError,
    ModelState,
    NotFoundError,
    RequestReleasedError,
    UnavailableError,
)
from headrace.v1 import (
    engine_service_pb2,
    generation_pb2,
    model_pb2,
    model_service_pb2,
    request_pb2,
    request_service_pb2,
    stat_pb2,
    status_pb2,
)
from scripted_replies import Failure, Hang
from scripted_server import ScriptedServer
from wire_samples import HANDLE, accepted, end_record, ended, ended_info, got, running_info, state, tokens

IDS = [5, 6, 7]
RELEASED = request_service_pb2.ReleaseRequestResponse()


def model_info(state: int = model_pb2.MODEL_STATE_RUNNING, **fields: Any) -> model_pb2.ModelInfo:
    """A model on an engine."""
    return model_pb2.ModelInfo(model_name="smol", engine="e1", state=state, wanted_state=state, **fields)


def test_install_model_sends_the_config_and_answers_for_each_engine(client: Client, server: ScriptedServer) -> None:
    failed = model_info(failure=status_pb2.Status(code=9, message="no room."))
    done = model_info(model_pb2.MODEL_STATE_INITIAL)
    done.effective.config.max_batch = 8
    done.effective.kv_tokens = 1024
    done.effective.warnings.add(field="top_p", message="odd.")
    done.state_time.FromSeconds(1_700_000_000)
    server.expect("InstallModel", model_service_pb2.InstallModelResponse(engines=[done, failed]))
    first, second = client.install_model(
        "smol", "models/smol.gguf", max_batch=8, kv_cache_mode="INT8", drain_limit=0, engine_ids=["e1", "e2"]
    )
    request = server.requests("InstallModel")[0]
    assert (request.config.model_name, request.config.model_path) == ("smol", "models/smol.gguf")
    assert request.config.HasField("drain_limit")
    assert (list(request.engine_ids), request.no_wait) == (["e1", "e2"], False)
    assert first.state is ModelState.INITIAL
    assert first.effective.config == {"max_batch": 8}
    assert first.effective.kv_tokens == 1024
    assert first.effective.warnings[0].field == "top_p"
    assert first.state_time == datetime.fromtimestamp(1_700_000_000, tz=UTC)
    assert second.effective is None
    assert "no room" in str(second.failure)


def test_a_wrong_install_keyword_raises_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(TypeError, match=r'install_model\(\) has no keyword "max_batchs"; did you mean max_batch'):
        client.install_model("smol", "x", max_batchs=8)
    with pytest.raises(InvalidRequestError, match="max_batch = -1"):
        client.install_model("smol", "x", max_batch=-1)


@pytest.mark.parametrize("verb", ["Start", "Stop", "Release"])
def test_model_verbs(client: Client, server: ScriptedServer, verb: str) -> None:
    answer = getattr(model_service_pb2, f"{verb}ModelResponse")(engines=[model_info()])
    server.expect(f"{verb}Model", answer)
    infos = getattr(client, f"{verb.lower()}_model")("smol", engine_ids=("e1",), no_wait=True)
    request = server.requests(f"{verb}Model")[0]
    assert (request.model_name, list(request.engine_ids), request.no_wait) == ("smol", ["e1"], True)
    assert [(one.engine, one.state) for one in infos] == [("e1", ModelState.RUNNING)]


def test_get_and_list_models(client: Client, server: ScriptedServer) -> None:
    server.expect("GetModel", model_service_pb2.GetModelResponse(engines=[model_info()]))
    server.expect("ListModels", model_service_pb2.ListModelsResponse(models=[model_info(99), model_info(0)]))
    assert client.get_model("smol")[0].model_name == "smol"
    # A state of tomorrow, and that of an engine that cannot be asked.
    assert [one.state for one in client.list_models()] == [ModelState.UNKNOWN] * 2


def test_watch_model_iterates_until_the_end_and_can_be_left(client: Client, server: ScriptedServer) -> None:
    progress = model_pb2.ModelProgress(phase=model_pb2.MODEL_PHASE_LOADING, bytes_done=5, bytes_total=10)
    changes = [model_service_pb2.WatchModelResponse(model=model_info(progress=progress))] * 2
    server.expect("WatchModel", [*changes], [*changes, Hang()])
    assert [one.progress.phase for one in client.watch_model("smol")] == ["LOADING"] * 2
    with client.watch_model("smol") as watch:
        assert next(watch).progress.bytes_total == 10
    assert list(watch) == []
    server.wait_for_streams(0)


def test_a_dropped_watch_ends_its_call(client: Client, server: ScriptedServer) -> None:
    server.expect("WatchModel", [Hang()])
    watch = client.watch_model()
    server.wait_for_streams(1)
    del watch
    server.wait_for_streams(0)


def test_a_watch_that_fails_raises(client: Client, server: ScriptedServer) -> None:
    server.expect("WatchModel", [Failure(grpc.StatusCode.NOT_FOUND, "no model smol.", reason="UNKNOWN_MODEL")])
    with pytest.raises(NotFoundError, match="no model smol"):
        next(client.watch_model("smol"))


def test_inspect_model(client: Client, server: ScriptedServer) -> None:
    description = model_pb2.ModelDescription(
        config_json='{"hidden_size": 64}', vocab_size=384, refusal=status_pb2.Status(code=3, message="too new.")
    )
    server.expect("InspectModel", model_service_pb2.InspectModelResponse(description=description, engine="e1"))
    found = client.inspect_model("models/x", format="HF", revision="main")
    request = server.requests("InspectModel")[0]
    assert (request.model_path, request.revision) == ("models/x", "main")
    assert (found.engine, found.config, found.vocab_size, found.chat_template) == ("e1", {"hidden_size": 64}, 384, None)
    assert "too new" in str(found.refusal)


def test_tokenize_and_detokenize(client: Client, server: ScriptedServer) -> None:
    server.expect("Tokenize", engine_service_pb2.TokenizeResponse(token_ids=[1, 2], rendered_text="<user>Hi"))
    server.expect("Detokenize", engine_service_pb2.DetokenizeResponse(text="Hi", pieces=[b"H", b"i"]))
    tokenized = client.tokenize("smol", messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=False)
    assert (tokenized.ids, tokenized.rendered_text) == ([1, 2], "<user>Hi")
    assert server.requests("Tokenize")[0].chat.HasField("add_generation_prompt")
    detokenized = client.detokenize("smol", [1, 2], skip_special_tokens=False)
    assert (detokenized.text, detokenized.pieces) == ("Hi", [b"H", b"i"])
    assert server.requests("Detokenize")[0].HasField("skip_special_tokens")


def test_engine_stats_and_server_info(client: Client, server: ScriptedServer) -> None:
    stat = stat_pb2.EngineStat(model_name="smol", engine="e1", running=3, generated_tps=51.5)
    stat.step_time_p50.FromMicroseconds(1500)
    stat.time.FromMilliseconds(1_700_000_000_500)
    server.expect("GetEngineStat", engine_service_pb2.GetEngineStatResponse(stats=[stat]))
    (found,) = client.engine_stats("smol")
    assert (found.running, found.generated_tps, found.step_time_p50, found.step_time_p99) == (3, 51.5, 1.5, None)
    assert found.time == 1_700_000_000_500
    assert found.prefix_cache_hit_rate is None
    engines = [engine_service_pb2.EngineInfo(engine="e1", reachable=True)]
    info = engine_service_pb2.GetServerInfoResponse(
        role=engine_service_pb2.SERVER_ROLE_GATEWAY, name="gw", features=["session"], engines=engines
    )
    server.expect("GetServerInfo", info)
    answer = client.server_info()
    assert (answer.role, answer.features, answer.start_time) == ("GATEWAY", ("session",), None)
    assert answer.engines[0].reachable


def test_watch_engine_stats(client: Client, server: ScriptedServer) -> None:
    one = engine_service_pb2.WatchEngineStatResponse(stats=[stat_pb2.EngineStat(running=2)])
    server.expect("WatchEngineStat", [one, one])
    assert [stats[0].running for stats in client.watch_engine_stats(interval=0.5)] == [2, 2]
    assert server.requests("WatchEngineStat")[0].interval.ToMilliseconds() == 500


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
def test_the_loops_that_users_write_are_right_on_an_ended_request(
    client: Client, server: ScriptedServer, loop: str
) -> None:
    server.expect("GetRequest", got(ended_info(IDS, text="…")))
    server.expect("GeneratedElements", [tokens(IDS), ended(IDS, "…")])
    queue = client.open_queue(HANDLE)
    found = LOOPS[loop](queue)
    assert [token for one in found for token in one.ids_from_generate] == IDS
    assert "".join(one.text for one in found).endswith("…")
    assert queue.GenerateStatus() is GenerateStatus.GenerateFinished


@pytest.mark.parametrize("loop", ["get then status", "poll once then get", "poll to the end then get", "iterate"])
def test_the_loops_that_users_write_are_right_on_a_running_request(
    client: Client, server: ScriptedServer, loop: str
) -> None:
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
def test_a_place_that_no_sequence_has_is_refused_before_anything_is_asked(
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


def test_generate_yields_text_and_releases_at_the_end(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect(
        "GeneratedElements", [tokens(IDS, text="Hello"), tokens([*IDS, 1], 3, text=""), ended([*IDS, 1], "!")]
    )
    server.expect("ReleaseRequest", RELEASED)
    stream = client.generate("smol", "Hi", max_new_tokens=4)
    assert "".join(stream) == "Hello!"
    assert stream.queue.finish_reason is FinishReason.EOS
    assert stream.queue.RequestStatInfo()["generate_tps"] == 50.0
    assert list(stream) == []


def test_generate_left_early_is_released(client: Client, server: ScriptedServer) -> None:
    for _ in range(2):
        server.expect("StartRequest", accepted())
        server.expect("GeneratedElements", [tokens(IDS), Hang()])
        server.expect("ReleaseRequest", RELEASED)
    with client.generate("smol", "Hi") as stream:
        assert next(stream)
    assert server.requests("ReleaseRequest")[0].handle == HANDLE
    stream = client.generate("smol", "Hi")
    assert next(stream)
    del stream
    gc.collect()
    server.wait_for("ReleaseRequest", 2)


def test_generate_that_fails_is_released_and_raises(client: Client, server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Failure(grpc.StatusCode.NOT_FOUND, "gone.", reason="ENGINE_LOST")])
    server.expect("ReleaseRequest", RELEASED)
    with pytest.raises(headrace.EngineLostError):
        list(client.generate("smol", "Hi"))


def test_generate_checks_its_keywords_when_it_is_called(client: Client) -> None:
    with pytest.raises(TypeError, match="did you mean"):
        client.generate("smol", "Hi", max_new_token=1)


def test_leaving_the_client_releases_what_it_started_and_nothing_else(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [Hang()], when=lambda request: request.handle == "a/b/1")
    server.expect("GeneratedElements", [ended([])], when=lambda request: request.handle == "a/b/2")
    server.expect("ReleaseRequest", RELEASED, RELEASED)
    with Client(server.address) as client:
        first, _ = client.start_request("smol", "Hello")
        second, queue = client.start_request("smol", "Hello")
        assert queue.Get() is None
        client.release_request(second)
        assert [one.handle for one in server.requests("ReleaseRequest")] == [second]
    assert [one.handle for one in server.requests("ReleaseRequest")] == [second, first]


def test_leaving_the_client_without_a_server_does_not_hang_or_raise(
    server: ScriptedServer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [Hang()], [Hang()])
    with Client(server.address, clock=clock) as client:
        for _ in range(2):
            client.start_request("smol", "Hello")
        server.wait_for_streams(2)
        server.stop()
    assert "could not release what is left" in caplog.text


def test_a_started_request_stays_attached_without_its_queue(client: Client, server: ScriptedServer) -> None:
    """Who keeps the handle alone must not lose the request to its lease."""
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [Hang()], [Hang()])
    server.expect("GetRequest", got(running_info()))
    handle = client.start_request("smol", "Hello")[0]
    server.wait_for_streams(1)
    extra = client.open_queue(handle)
    server.wait_for_streams(2)
    del extra
    server.wait_for_streams(1)
    server.expect("ReleaseRequest", RELEASED)
    client.release_request(handle)
    server.wait_for_streams(0)


def test_a_dropped_client_keeps_nothing_but_queues_that_somebody_has(server: ScriptedServer) -> None:
    server.expect("StartRequest", accepted("a/b/1"), accepted("a/b/2"))
    server.expect("GeneratedElements", [Hang()], when=lambda request: request.handle == "a/b/1")
    go = threading.Event()
    server.expect("GeneratedElements", [go, tokens(IDS), ended(IDS)], when=lambda request: request.handle == "a/b/2")
    client = Client(server.address)
    client.start_request("smol", "Hello")
    _, queue = client.start_request("smol", "Hello")
    server.wait_for_streams(2)
    del client
    server.wait_for_streams(1)
    go.set()
    assert [one.ids_from_generate for one in queue] == [IDS]
    server.wait_for_streams(0)


def test_a_closed_client_refuses_calls(client: Client) -> None:
    client.close()
    client.close()
    with pytest.raises(UnavailableError) as caught:
        client.server_info()
    assert caught.value.reason == "CLIENT_CLOSED"


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
def test_bc195_explicit_zeros_reach_the_server_and_nothing_else_does(
    client: Client, server: ScriptedServer, fields: dict[str, Any]
) -> None:
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [ended([])])
    client.start_request("smol", "Hello", **fields)[1].Get()
    config = server.requests("StartRequest")[0].config
    assert {field.name: value for field, value in config.ListFields()} == fields
