"""Every verb of the asynchronous client asks what the other one asks, and makes the same of the answer."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
from headrace import AsyncClient, AsyncResultQueue, Client, ResultQueue
from headrace_proto.v1 import engine_service_pb2 as engine
from headrace_proto.v1 import generation_pb2, model_pb2, request_pb2, stat_pb2
from headrace_proto.v1 import model_service_pb2 as model
from headrace_proto.v1 import request_service_pb2 as wire
from support.scripted.server import ScriptedServer
from support.scripted.wire_samples import HANDLE, accepted, ended, ended_info, got, running_info, state, tokens

IDS = [5, 6, 7]
INFO = model_pb2.ModelInfo(model_name="smol", engine="e1", state=model_pb2.MODEL_STATE_RUNNING)
ADAPTER = model_pb2.AdapterInfo(model_name="smol", engine="e1", name="a", digest="00", rank=4)
MESSAGES = [{"role": "user", "content": "Hi"}]

VERBS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("install_model", ("smol", "a/b"), {"max_batch": 8, "no_wait": True}, model.InstallModelResponse(engines=[INFO])),
    ("start_model", ("smol",), {"engine_ids": ["e1"]}, model.StartModelResponse(engines=[INFO])),
    ("stop_model", ("smol",), {"no_wait": True}, model.StopModelResponse(engines=[INFO])),
    ("release_model", ("smol",), {}, model.ReleaseModelResponse(engines=[INFO])),
    ("load_adapter", ("smol", "a", "x/a"), {}, model.LoadAdapterResponse(engines=[ADAPTER])),
    ("unload_adapter", ("smol", "a"), {"engine_ids": ["e1"]}, model.UnloadAdapterResponse(engines=[ADAPTER])),
    ("list_adapters", ("smol",), {}, model.ListAdaptersResponse(adapters=[ADAPTER])),
    ("get_model", ("smol",), {}, model.GetModelResponse(engines=[INFO])),
    ("list_models", (), {"engine_ids": ["e1"]}, model.ListModelsResponse(models=[INFO])),
    ("inspect_model", ("a/b",), {"revision": "main"}, model.InspectModelResponse(engine="e1")),
    ("tokenize", ("smol",), {"messages": MESSAGES}, engine.TokenizeResponse(token_ids=IDS, rendered_text="Hi")),
    ("detokenize", ("smol", IDS), {}, engine.DetokenizeResponse(text="Hi", pieces=[b"H", b"i"])),
    ("engine_stats", ("smol",), {}, engine.GetEngineStatResponse(stats=[stat_pb2.EngineStat(running=3)])),
    ("server_info", (), {}, engine.GetServerInfoResponse(name="gw")),
    ("embed", ("smol", ["Hi", IDS, MESSAGES]), {"pooling": "MEAN"}, wire.EmbedResponse(embeddings=[{"values": [0.5]}])),
    ("stop_request", (HANDLE,), {}, wire.StopRequestResponse(sequences=[ended_info(IDS)])),
    ("release_request", (HANDLE,), {}, wire.ReleaseRequestResponse()),
    ("sync_request", (HANDLE,), {}, wire.SyncRequestResponse(requests=[state(HANDLE, ended_info(IDS))])),
    ("sync_request", (), {"model": "smol"}, wire.SyncRequestResponse(requests=[state()])),
    ("get_request", (), {"request_id": "r1", "wait": 2.0}, got(running_info(3))),
    ("list_requests", ("smol",), {"running_only": True}, wire.ListRequestsResponse(requests=[state()])),
]


@pytest.fixture
def path() -> str:
    """Nothing is read here."""
    return "session"


def rpc_of(verb: str) -> str:
    """The call that a verb makes."""
    special = {"engine_stats": "GetEngineStat", "server_info": "GetServerInfo"}
    return special.get(verb, "".join(part.capitalize() for part in verb.split("_")))


@pytest.mark.parametrize(("verb", "given", "named", "answer"), VERBS)
async def test_a_verb_asks_and_answers_as_the_other_clients(
    client: AsyncClient, server: ScriptedServer, verb: str, given: Any, named: Any, answer: Any
) -> None:
    server.expect(rpc_of(verb), answer, answer)
    found = await getattr(client, verb)(*given, **named)
    with Client(server.address) as other:
        assert getattr(other, verb)(*given, **named) == found
    asked = server.requests(rpc_of(verb))
    assert asked[0] == asked[1]


def public(kind: type) -> set[str]:
    """Names for callers."""
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_clients_and_both_queues_have_the_same_names() -> None:
    assert public(AsyncClient) == public(Client)
    assert public(AsyncResultQueue) - {"pass_on"} == public(ResultQueue)  # In a thread it would be a loop.


@pytest.mark.parametrize("verb", sorted(public(Client)))
def test_a_verb_takes_what_the_other_takes_and_has_a_manual(verb: str) -> None:
    mine, other = getattr(AsyncClient, verb), getattr(Client, verb)
    assert inspect.signature(mine).parameters.keys() == inspect.signature(other).parameters.keys()
    assert mine.__doc__
    plain = ("generate", "serialize_model", "watch_model", "watch_engine_stats")
    assert inspect.iscoroutinefunction(mine) == (verb not in plain)


async def test_a_wrong_keyword_raises_before_anything_is_sent(client: AsyncClient) -> None:
    with pytest.raises(TypeError, match="max_batch"):
        await client.install_model("smol", "x", max_batchs=8)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        client.generate("smol", "Hi", temprature=1)  # type: ignore[call-arg]


def test_an_unknown_option_names_the_client() -> None:
    with pytest.raises(TypeError, match="AsyncClient"):
        AsyncClient("localhost:7070", api_kay="secret")


async def test_a_start_returns_handle_and_queue_and_several_choices(
    client: AsyncClient, server: ScriptedServer
) -> None:
    server.expect("StartRequest", accepted(effective_config=generation_pb2.GenerationConfig(n=2)))
    server.expect("GeneratedElements", [tokens([0, 1]), ended([0, 1])], when=lambda request: request.index == 0)
    server.expect("GeneratedElements", [tokens([1, 2]), ended([1, 2])], when=lambda request: request.index == 1)
    handle, queue = await client.start_request("smol", messages=MESSAGES, n=2)
    assert (handle, queue.request_id, queue.index) == (HANDLE, "r1", 0)
    assert queue.choices[0] is queue
    found = [[token async for one in choice for token in one.ids_from_generate] for choice in queue.choices]
    assert found == [[0, 1], [1, 2]]


async def test_more_queues_of_a_request(client: AsyncClient, server: ScriptedServer) -> None:
    server.expect("GetRequest", got(ended_info(IDS)), got(running_info()))
    server.expect("GeneratedElements", [tokens(IDS, 2), ended(IDS)])
    queue = await client.open_queue(HANDLE, from_position=2)
    elements = await queue.Get()
    assert elements is not None
    assert elements.ids_from_generate == IDS[2:]
    with pytest.raises(ValueError, match="index = 3"):
        await client.open_queue(HANDLE, index=3)


async def test_pages_of_a_list_are_joined(client: AsyncClient, server: ScriptedServer) -> None:
    first = wire.ListRequestsResponse(requests=[state("e1/i1/1")], next_page_token="p2")
    server.expect("ListRequests", first, wire.ListRequestsResponse(requests=[state("e1/i1/2")]))
    assert [one.handle for one in await client.list_requests()] == ["e1/i1/1", "e1/i1/2"]
    assert [request.page_token for request in server.requests("ListRequests")] == ["", "p2"]


async def test_statistics_are_asked_while_running_and_kept_after(client: AsyncClient, server: ScriptedServer) -> None:
    go = threading.Event()
    running = request_pb2.SequenceInfo(stat=stat_pb2.RequestStatInfo(generated_token_length=2))
    server.expect("StartRequest", accepted())
    server.expect("GeneratedElements", [tokens(IDS, 0, 2), go, tokens(IDS, 2), ended(IDS)])
    server.expect("GetRequest", got(running))
    _, queue = await client.start_request("smol", "Hi")
    assert (await queue.RequestStatInfo())["generated_token_length"] == 2
    go.set()
    assert [token async for one in queue for token in one.ids_from_generate] == IDS
    assert (await queue.RequestStatInfo())["generated_token_length"] == 3
