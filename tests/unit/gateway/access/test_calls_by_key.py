"""What callers with, without and with wrong API keys may do; and whose requests theirs are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import httpx2 as httpx
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from headrace_gateway import server
from headrace_gateway.access import keyring
from headrace_gateway.access.access import ADMIN, STARTS
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2, session_pb2
from headrace_proto.v1 import request_service_pb2 as wire
from support.clocks.waiting import LIMIT
from support.scripted.engine_answers import RUNNING, refuse
from support.scripted.engine_server import ScriptedEngine
from unit.gateway.access.keyed import Auth, Keyed
from unit.gateway.conftest import Front, until
from unit.gateway.failures import failing, failure_of

SERVICES = [
    service
    for module in (engine_service_pb2, model_service_pb2, request_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS = {method.name: method for service in SERVICES for method in service.methods}


@pytest.fixture
def keys(keyed: Keyed) -> Callable[..., Auth]:
    """Adds keys to a key file; gives the metadata that sends them."""
    return keyed.key


async def ended(session: Any) -> None:
    """Reads a session to its end."""
    while await session.read() is not grpc.aio.EOF:
        pass


async def never(request: Any, context: Any) -> None:
    """Answers not at all."""
    await asyncio.Event().wait()


@pytest.fixture
def guarded(keyed: Keyed) -> Callable[..., Any]:
    """Starts a gateway that asks for the keys."""

    async def start(engine: ScriptedEngine, **more: Any) -> Front:
        return await keyed.gateway(e1=engine, **more)

    return start


def call(front: Front, method: Any, auth: Auth, request: Any = None) -> Any:
    """Calls a method of the contract with an empty message, or another; returns its call."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    streams = ("unary", "stream")[method.client_streaming], ("unary", "stream")[method.server_streaming]
    make = getattr(front.channel, "_".join(streams))
    function = make(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    message = GetMessageClass(method.input_type)() if request is None else request
    return function(iter([message]) if method.client_streaming else message, metadata=auth)


async def outcome(front: Front, method: Any, auth: Auth, request: Any = None) -> tuple[Any, str]:
    """The status of a call, and its reason; OK after the first message of a stream."""
    made = call(front, method, auth, request)
    try:
        if method.server_streaming:
            await made.read()
            made.cancel()
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return failure_of(error).reported
    return grpc.StatusCode.OK, ""


WRONG = [None, "", "Bearer", "Bearer ", "Bearer hr_wrong", "Basic {key}", "{key}", "Bearer {swapped}"]


@pytest.mark.parametrize("sent", WRONG)
async def test_bc186_every_call_needs_a_key(world, engine, keys, guarded, sent: str | None) -> None:
    ((_, right),) = keys("web", admin=True)
    key = right.removeprefix("Bearer ")
    front = await guarded(engine)
    auth = () if sent is None else (("authorization", sent.format(key=key, swapped=key.swapcase())),)
    polls = len(engine.heard)
    for method in METHODS.values():
        assert await outcome(front, method, auth) == (grpc.StatusCode.UNAUTHENTICATED, "BAD_API_KEY"), method.name
    reflect = front.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = reflect(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=auth)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asked.read()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert len(engine.heard) == polls
    healthy = await front.health.Check(health_pb2.HealthCheckRequest(), metadata=auth)
    assert healthy.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_valid_key_is_enough(engine, keys, guarded, scheme: str) -> None:
    ((name, sent),) = keys("web", admin=True)
    front = await guarded(engine)
    auth = ((name, sent.replace("Bearer", scheme)),)
    for method in METHODS.values():
        code, reason = await outcome(front, method, auth)
        assert code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED), (method.name, reason)


async def test_only_admin_keys_change_models(engine, keys, guarded) -> None:
    auth = keys("web")
    front = await guarded(engine)
    refused = (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
    outcomes = {name: await outcome(front, method, auth) for name, method in METHODS.items()}
    assert {name for name, reported in outcomes.items() if reported == refused} == ADMIN & set(METHODS)
    assert set(METHODS) >= STARTS


async def test_every_call_is_either_an_admins_or_meant_for_all() -> None:
    """A call that is new to the contract is for everyone until it is listed: this test is where to decide."""
    meant_for_all = {
        "GetServerInfo", "GetEngineStat", "WatchEngineStat", "Tokenize", "Detokenize", "GetModel", "ListModels",
        "WatchModel", "StartRequest", "StopRequest", "ReleaseRequest", "SyncRequest", "GetRequest", "ListRequests",
        "GeneratedElements", "Session", "Generate", "Embed", "ListAdapters",
    }  # fmt: skip
    assert set(METHODS) <= meant_for_all | ADMIN
    assert not meant_for_all & ADMIN


async def test_a_key_may_use_its_models_only(world, keys, guarded) -> None:
    engine = await world.engine(smol=RUNNING, large=RUNNING)
    auth = keys("web", models=["smol*"])
    front = await guarded(engine)
    for method in METHODS.values():
        fields = method.input_type.fields_by_name
        if "model_name" not in fields or method.name in ADMIN:
            continue
        kind = GetMessageClass(method.input_type)
        reported = await outcome(front, method, auth, kind(model_name="large"))
        assert reported == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED"), method.name
    reported = await failing(front.requests.StartRequest(wire.StartRequestRequest(model_name="large"), metadata=auth))
    assert reported.message == 'API key "web" may not use model "large"; it may use: smol*'
    started = await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="a"), metadata=auth)
    assert started.request.handle


async def test_requests_belong_to_the_owner_of_the_key(engine, keys, guarded, join) -> None:
    auth, other = keys("web", owner="team"), keys("app")
    front = await guarded(engine)
    started = await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="a"), metadata=auth)
    assert engine.asked("StartRequest")[0].request.owner == "team"
    own = wire.StopRequestRequest(handle=started.request.handle, owner="team")
    assert await outcome(front, METHODS["StopRequest"], auth, own) == (grpc.StatusCode.OK, "")
    refused = await failing(front.requests.StopRequest(own, metadata=other))
    assert refused.reported == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")
    assert refused.message == 'owner = "team" is another owner than that of this API key, "app"'
    question = wire.GetRequestRequest(request_id="r1")
    await outcome(front, METHODS["GetRequest"], auth, question)
    assert engine.asked("GetRequest")[-1].request.owner == "team"
    await front.requests.ListRequests(wire.ListRequestsRequest(), metadata=auth)
    assert engine.asked("ListRequests")[-1].request.owner == "team"
    await front.requests.ReleaseRequest(wire.ReleaseRequestRequest(handle=started.request.handle), metadata=other)
    assert engine.asked("ReleaseRequest")[0].request.owner == "app"


async def test_a_session_attaches_as_its_owner(engine, keys, guarded) -> None:
    auth = keys("web", owner="team")
    engine.owner = "team"
    front = await guarded(engine)
    handle, _ = engine.log()
    session = front.requests.Session(metadata=auth)
    attach = session_pb2.Attach(channel=1, handle=handle)
    foreign = session_pb2.Attach(channel=2, handle=handle, owner="app")
    await session.write(session_pb2.SessionRequest(options=session_pb2.SessionOptions(), attach=[attach, foreign]))
    await until(engine, lambda: engine.sessions and engine.side.attaches)
    assert [attach.owner for attach in engine.side.attaches] == ["team"]
    errors: list[Any] = []
    while not errors:
        errors += (await session.read()).errors
    assert [(error.channel, error.status.code) for error in errors] == [(2, grpc.StatusCode.PERMISSION_DENIED.value[0])]
    session.cancel()


async def test_the_key_stays_at_the_gateway_and_owners_are_anonymous(engine, keys, guarded) -> None:
    auth, other = keys("web"), keys("app")
    front = await guarded(engine)
    for each in (auth, auth, other):
        await front.requests.StartRequest(wire.StartRequestRequest(model_name="smol", text="a"), metadata=each)
    heard = [call.metadata for call in engine.asked("StartRequest")]
    callers = [metadata["headrace-caller"] for metadata in heard]
    assert callers[0] == callers[1] != callers[2]
    assert "web" not in callers[0]
    assert all("authorization" not in metadata for metadata in heard)


async def test_starts_beyond_the_rate_are_refused_with_a_time(engine, keys, guarded) -> None:
    auth, other = keys("web", requests_per_minute=2), keys("app")
    front = await guarded(engine)
    request = wire.StartRequestRequest(model_name="smol", text="a")
    for _ in range(2):
        await front.requests.StartRequest(request, metadata=auth)
    refused = await failing(front.requests.StartRequest(request, metadata=auth))
    assert refused.reported == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert 0 < refused.retry_seconds <= 30
    assert '"web" has used up its 2 requests a minute' in refused.message
    await front.requests.StartRequest(request, metadata=other)
    assert await outcome(front, METHODS["ListModels"], auth) == (grpc.StatusCode.OK, "")


async def test_a_request_over_http_belongs_to_the_owner_of_its_key(engine, keys, guarded) -> None:
    auth, other = keys("web", owner="team"), keys("app", requests_per_minute=1)
    engine.owner = "team"
    front = await guarded(engine, http=True)
    url = f"http://{front.gateway.http.address}/v1/completions"
    body = {"model": "smol", "prompt": "a", "stream": True}
    async with httpx.AsyncClient(timeout=LIMIT) as client, client.stream("POST", url, json=body, headers=dict(auth)):
        await until(engine, lambda: engine.sessions and engine.side.attaches)
        assert [attach.owner for attach in engine.side.attaches] == ["team"]
    await until(engine, lambda: engine.asked("ReleaseRequest"))
    assert [engine.asked(name)[0].request.owner for name in ("StartRequest", "ReleaseRequest")] == ["team", "team"]
    engine.script["StartRequest"] = lambda _, context: refuse(
        context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"
    )
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        codes = [(await client.post(url, json=body, headers=dict(other))).status_code for _ in range(2)]
    assert codes == [400, 429]


async def test_calls_of_a_key_that_is_taken_away_end(
    engine, keys, guarded, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gRPC and HTTP; those of another key of its owner go on."""
    for module in (keyring, server):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    kept = keys("kept", owner="team")
    lines = (tmp_path / "keys.toml").read_text()
    lost = keys("lost", owner="team")
    engine.owner = "team"
    front = await guarded(engine, http=True)
    begin = session_pb2.SessionRequest(options=session_pb2.SessionOptions())
    sessions = [front.requests.Session(metadata=auth) for auth in (lost, kept)]
    for session in sessions:
        await session.write(begin)
        await session.read()
    engine.script["StartRequest"] = never
    url, body = f"http://{front.gateway.http.address}/v1/completions", {"model": "smol", "prompt": "a"}
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        asking = asyncio.create_task(client.post(url, json=body, headers=dict(lost)))
        await until(engine, lambda: engine.asked("StartRequest"))
        (tmp_path / "keys.toml").write_text(lines)
        answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "bad_api_key")
    assert (await failing(ended(sessions[0]))).reported == (grpc.StatusCode.UNAUTHENTICATED, "BAD_API_KEY")
    assert not sessions[1].done()
    sessions[1].cancel()
