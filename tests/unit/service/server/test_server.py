"""The engine's gRPC server: what clients of any kind see of it."""

from __future__ import annotations

import grpc
import pytest
from headrace_engine.chat_types import Chat
from headrace_engine.config import ModelFormat, RuntimeConfig
from headrace_engine.model_types import ModelState
from headrace_engine.request_types import StartRequest
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_pb2, request_service_pb2
from support.clocks.waiting import DEADLINES, happens
from support.scripted.engine import HANDLE
from unit.service.conftest import fields_of


async def failure_of(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def drain(call) -> list:
    return [message async for message in call]


# What reaches the engine, and what comes back.


async def test_model_calls_reach_the_engine_and_answer_for_it(front):
    install = model_service_pb2.InstallModelRequest(config={"model_name": "tiny", "max_batch": 4}, no_wait=True)
    answer = await front.models.InstallModel(install)
    assert [(info.model_name, info.engine) for info in answer.engines] == [("tiny", "e1")]
    assert front.engine.calls == [("install_model", (RuntimeConfig("tiny", max_batch=4), True))]
    for verb, request in (
        ("start_model", model_service_pb2.StartModelRequest),
        ("stop_model", model_service_pb2.StopModelRequest),
        ("release_model", model_service_pb2.ReleaseModelRequest),
    ):
        method = "".join(part.title() for part in verb.split("_"))
        await getattr(front.models, method)(request(model_name="smol"))
        assert (verb, ("smol", False)) in front.engine.calls


async def test_get_model_has_the_effective_config_list_models_has_not(front):
    got = await front.models.GetModel(model_service_pb2.GetModelRequest(model_name="smol"))
    assert got.engines[0].effective.kv_tokens == 64
    listed = await front.models.ListModels(model_service_pb2.ListModelsRequest())
    assert [model.HasField("effective") for model in listed.models] == [False]


async def test_inspect_model_passes_every_field_on(front):
    request = model_service_pb2.InspectModelRequest(
        model_path="p", file_prefix="f", revision="r", hub="h", format="MODEL_FORMAT_GGUF", engine_id="e1"
    )
    answer = await front.models.InspectModel(request)
    where = {"file_prefix": "f", "revision": "r", "hub": "h", "format": ModelFormat.GGUF}
    assert front.engine.calls == [("inspect_model", ("p", where))]
    assert (answer.engine, answer.description.num_parameters) == ("e1", 1000)


async def test_inspect_model_refuses_a_format_that_it_does_not_know(front):
    error = await failure_of(front.models.InspectModel(model_service_pb2.InspectModelRequest(format=9)))
    assert (error.code(), fields_of(error)) == (grpc.StatusCode.INVALID_ARGUMENT, ["format"])


async def test_watch_model_follows_the_engine(front):
    call = front.models.WatchModel(model_service_pb2.WatchModelRequest())
    states = [(await call.read()).model.state]
    front.engine.set_state(ModelState.STARTING)
    states.append((await call.read()).model.state)
    assert states == [2, 3]
    call.cancel()
    await happens(front.engine.closed["watch_model"], "the engine is watched on")


async def test_start_request_reaches_the_engine_and_comes_back(front):
    request = request_service_pb2.StartRequestRequest(model_name="smol", text="hi", request_id="r1", owner="ann")
    answer = await front.requests.StartRequest(request)
    ((name, (got,)),) = front.engine.calls
    assert name == "start_request"
    assert got == StartRequest("smol", "hi", request_id="r1", owner="ann", content=got.content, caller=got.caller)
    assert (answer.request.handle, answer.request.request_id, answer.request.seed) == (HANDLE, "r1", 7)


async def test_a6_a_caller_is_named_by_its_gateway_or_connection(front):
    """As a share is counted for it; a gateway is the one connection of all its clients."""
    request = request_service_pb2.StartRequestRequest(model_name="smol", text="hi")
    await front.requests.StartRequest(request)
    await front.requests.StartRequest(request, metadata=(("headrace-caller", "c" * 100),))
    direct, through = (got for _, (got,) in front.engine.calls)
    assert direct.caller.startswith(("ipv4:", "ipv6:"))
    assert through.caller == "c" * 64
    assert direct.party == direct.caller


async def test_get_request_keeps_the_presence_of_its_position(front):
    ask = request_service_pb2.GetRequestRequest
    await front.requests.GetRequest(ask(request_id="r1"))
    await front.requests.GetRequest(ask(request_id="r1", prompt_logprobs_from=0))
    answer = await front.requests.GetRequest(ask(handle="h", from_position=0, index=2, wait={"nanos": 500_000_000}))
    defaults = {"owner": "", "wait": 0.0, "index": 0, "from_position": None, "prompt_logprobs_from": None}
    assert [arguments for _, (arguments,) in front.engine.calls] == [
        {"request_id": "r1", **defaults},
        {"request_id": "r1", **defaults, "prompt_logprobs_from": 0},
        {"handle": "h", **defaults, "wait": 0.5, "index": 2, "from_position": 0},
    ]
    assert list(answer.elements.token_ids) == [5, 6]
    assert answer.request.request.effective_config.seed == 7


async def test_other_request_calls_reach_the_engine(front):
    stopped = await front.requests.StopRequest(request_service_pb2.StopRequestRequest(handle="h", owner="o"))
    assert stopped.sequences[0].end.finish_reason == request_pb2.FINISH_REASON_EOS
    await front.requests.ReleaseRequest(request_service_pb2.ReleaseRequestRequest(handle="h", owner="o"))
    listing = request_service_pb2.ListRequestsRequest(
        model_name="m", running_only=True, page_size=5, page_token="t", owner="o"
    )
    page = await front.requests.ListRequests(listing)
    assert (len(page.requests), page.next_page_token) == (2, "next")
    assert not page.requests[0].request.HasField("effective_config")
    paging = {"model_name": "m", "running_only": True, "page_size": 5, "page_token": "t"}
    assert front.engine.calls == [
        ("stop_request", ("h", "o")),
        ("release_request", ("h", "o")),
        ("list_requests", ("o", paging)),
    ]


@pytest.mark.parametrize(("field", "expected"), [("handle", ("x", None, "o")), ("model_name", (None, "x", "o"))])
async def test_sync_request_waits_for_one_or_for_all_of_a_model(front, field, expected):
    front.engine.release_sync.set()
    answer = await front.requests.SyncRequest(request_service_pb2.SyncRequestRequest(owner="o", **{field: "x"}))
    assert front.engine.calls == [("sync_request", expected)]
    assert not answer.requests[0].request.HasField("effective_config")


async def test_a_sync_request_ends_with_its_deadline(front):
    for seconds in DEADLINES:
        call = front.requests.SyncRequest(request_service_pb2.SyncRequestRequest(handle="x"), timeout=seconds)
        assert (await failure_of(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if front.engine.calls:
            break
    await happens(front.engine.sync_cancelled, "the engine goes on waiting")


async def test_generated_elements_are_the_engines_until_the_end(front):
    ask = request_service_pb2.GeneratedElementsRequest(handle="h", index=1, from_position=2, owner="o")
    messages = await drain(front.requests.GeneratedElements(ask))
    assert front.engine.calls == [("read", ("h", 1, 2, "o"))]
    assert [list(message.elements.token_ids) for message in messages] == [[5, 6], [7], []]
    assert {(message.handle, message.index) for message in messages} == {("h", 1)}
    assert [message.status for message in messages][-1] == request_pb2.GENERATE_STATUS_FINISHED
    assert messages[-1].end.position == 3
    assert not messages[-1].HasField("elements")


async def test_generate_says_what_was_accepted_then_what_comes(front):
    messages = await drain(front.requests.Generate(request_service_pb2.GenerateRequest(model_name="smol", text="hi")))
    assert messages[0].request.handle == HANDLE
    assert [list(message.elements.token_ids) for message in messages] == [[], [5, 6], [7], []]
    assert messages[-1].HasField("end")


async def test_facts_reach_the_client(front):
    info = await front.facts.GetServerInfo(engine_service_pb2.GetServerInfoRequest())
    assert (info.role, info.name, info.api_version) == (engine_service_pb2.SERVER_ROLE_ENGINE, "e1", "1.0")
    stats = await front.facts.GetEngineStat(engine_service_pb2.GetEngineStatRequest(model_name="m"))
    assert [(stat.model_name, stat.running, stat.build) for stat in stats.stats] == [("m", 2, "build 7")]
    ids = await front.facts.Tokenize(engine_service_pb2.TokenizeRequest(model_name="m", chat={}))
    assert list(ids.token_ids) == [1, 2]
    for skip, expected in ((None, True), (False, False)):
        request = engine_service_pb2.DetokenizeRequest(model_name="m", token_ids=[3], skip_special_tokens=skip)
        assert list((await front.facts.Detokenize(request)).pieces) == [b"\xc3", b"\xa9"]
        assert front.engine.calls[-1] == ("detokenize", ("m", [3], expected))
    assert ("tokenize", ("m", Chat(()), None)) in front.engine.calls


async def test_statistics_are_watched_again_and_again(front):
    call = front.facts.WatchEngineStat(engine_service_pb2.WatchEngineStatRequest(interval={"nanos": 100_000_000}))
    for _ in range(3):
        assert (await call.read()).stats[0].running == 2
    call.cancel()


async def test_an_interval_that_is_too_short_is_refused_with_the_limit(front):
    request = engine_service_pb2.WatchEngineStatRequest(interval={"nanos": 99_000_000})
    error = await failure_of(front.facts.WatchEngineStat(request).read())
    assert fields_of(error) == ["interval"]
    assert "= 0.099 s is too short; allowed: at least 0.1 s" in error.details()
