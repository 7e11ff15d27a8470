"""What no client of ours would send, to every method of real servers: it is told as its sender's mistake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress

import grpc
import grpc_health.v1.health_pb2
import grpc_reflection.v1alpha.reflection_pb2  # noqa: F401  # Found by name.
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from headrace._transport.methods import CONVERSATIONS, METHODS
from headrace_proto.v1.engine_service_pb2 import GetServerInfoRequest
from headrace_proto.v1.engine_service_pb2_grpc import EngineServiceStub
from headrace_proto.v1.request_service_pb2 import StartRequestRequest
from support.clocks.waiting import wait_until
from support.servers.cut_proxy import cut_proxy
from support.servers.processes import Server, engine_server, gateway_server

SERVICES = (
    "headrace.v1.EngineService",
    "headrace.v1.ModelService",
    "headrace.v1.RequestService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
)
CALLS = [method for name in SERVICES for method in Default().FindServiceByName(name).methods]
NO_MESSAGE = b"\xff"
LIMIT = 64 << 20
ALLOWED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "DEADLINE_EXCEEDED",  # Calls without an end get one.
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    with engine_server("e1") as engine, gateway_server({"e1": engine.address}) as gateway:
        gateway.wait_event("engine_reached")
        yield {"engine": engine, "gateway": gateway}


@pytest.fixture(params=["engine", "gateway"])
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.address, [("grpc.max_send_message_length", -1)]) as channel:
        yield channel


async def _sent(channel: grpc.aio.Channel, path: str, data: bytes, seconds: float = 60) -> grpc.aio.AioRpcError | None:
    """Send these bytes as a message; how the call failed, None if it answers or ends well."""
    call = channel.unary_stream(path)(data, timeout=seconds)  # One batch: no write that can meet the end of the call.
    try:
        async for _ in call:
            break
    except grpc.aio.AioRpcError as error:
        return error
    call.cancel()
    with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
        await call.code()
    return None


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _reason(error: grpc.aio.AioRpcError) -> str:
    (data,) = (value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(data).details[0].Unpack(info)
    return info.reason


def _mistakes(server: Server) -> list[object]:
    """Lines of the log that say that something is wrong with the server, and lines that are none of ours."""
    return [event for event in server.events if event.get("level") not in ("info", "debug", "warning")]


@pytest.mark.parametrize("method", CALLS, ids=_path)
async def test_f10_bytes_that_are_no_message_are_invalid(method, server, channel):
    error = await _sent(channel, _path(method), NO_MESSAGE)
    assert error is not None
    assert (error.code(), _reason(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert method.name in error.details()
    server.wait_event("request_refused", method=method.name, reason="INVALID_FIELD", level="info")
    assert _mistakes(server) == []


async def test_f10_a_session_that_ends_in_garbage_is_told_so(server, channel):
    first = CONVERSATIONS["headrace.v1.RequestService/Session"].request(options={})
    call = channel.stream_stream("/headrace.v1.RequestService/Session")(iter([first.SerializeToString(), NO_MESSAGE]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    assert (caught.value.code(), _reason(caught.value)) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert _mistakes(server) == []


async def test_f10_what_reaches_no_method_leaves_no_trace(server, channel):
    found = [
        await _sent(channel, "/headrace.v1.RequestService/Nothing", b""),
        await _sent(channel, "/nothing/at/all", b""),
        await _sent(channel, "/headrace.v1.RequestService/StartRequest", bytes(LIMIT + 1)),
        await _sent(channel, "/headrace.v1.RequestService/Session", bytes(LIMIT + 1)),
    ]
    codes = [error.code().name for error in found if error is not None]
    assert codes == ["UNIMPLEMENTED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
    assert _mistakes(server) == []


async def test_f10_health_lists_all_services(server, channel):
    health = grpc_health.v1.health_pb2
    answer = await channel.unary_unary(
        "/grpc.health.v1.Health/List",
        request_serializer=health.HealthListRequest.SerializeToString,
        response_deserializer=health.HealthListResponse.FromString,
    )(health.HealthListRequest())
    assert sorted(answer.statuses) == ["", "headrace.v1.ModelService", "headrace.v1.RequestService"]


async def test_f10_no_message_however_broken_is_a_defect(server, channel):
    """Random bytes, and messages in which some bytes were changed, to every method."""
    random_ = random.Random(20261128)
    calls = [(method, data) for method in CALLS for data in _broken(method, random_)]
    # Watches never end by themselves.
    failures = await asyncio.gather(*(_sent(channel, _path(method), data, 5) for method, data in calls))
    reported = {(method.name, error.code().name) for (method, _), error in zip(calls, failures, strict=True) if error}
    assert {code for _, code in reported} <= ALLOWED, reported
    assert _mistakes(server) == []


def _broken(method: MethodDescriptor, random_: random.Random) -> Iterator[bytes]:
    for size in (2, 3, 5, 8, 40):
        yield random_.randbytes(size)
    whole = _filled(method).SerializeToString()
    for _ in range(15):
        data = bytearray(whole)
        for _ in range(random_.randint(1, 3)):
            if data:
                data[random_.randrange(len(data))] = random_.randrange(256)
        yield bytes(data[: random_.randint(0, len(data))] if random_.random() < 0.3 else data)


def _filled(method: MethodDescriptor) -> Message:
    """A message with something in its fields."""
    name = f"{method.containing_service.full_name}/{method.name}"
    if name.endswith("/StartRequest"):
        return StartRequestRequest(model_name="smol", text="hi", config={"stop_words": ["a"], "top_p": 0.5})
    known = METHODS.get(name) or CONVERSATIONS.get(name)
    message = known.request() if known else GetMessageClass(method.input_type)()
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(message, field.name, "some/name/é")
    return message


def _refused(server: Server, begun: int) -> list[str]:
    """Return the methods of calls whose refusals the log has from its line `begun` on."""
    return [event["method"] for event in server.events[begun:] if event.get("event") == "request_refused"]


async def test_f15_seventy_silent_connections_delay_no_other_host(server: Server, channel: grpc.aio.Channel) -> None:
    """They begin calls and send no message; each has its call read, or waiting to be, before another host calls."""
    never = asyncio.Event()

    async def nothing() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(cut_proxy(server.address, source="127.0.0.2"))
        silent = []
        for _ in range(70):
            options = [("grpc.use_local_subchannel_pool", 1)]
            one = await stack.enter_async_context(grpc.aio.insecure_channel(proxy.address, options))
            silent.append(one.stream_unary("/headrace.v1.EngineService/Tokenize")(nothing()))
            await HealthStub(one).Check(HealthCheckRequest())  # Comes after the call's beginning.
        begun = len(server.events)
        assert (await EngineServiceStub(channel).GetServerInfo(GetServerInfoRequest())).name
        assert not any(call.done() for call in silent)
        # The log is in order: had a read waited for one of the silent calls to end, that call's refusal came first.
        assert await _sent(channel, "/headrace.v1.EngineService/GetServerInfo", NO_MESSAGE) is not None
        await asyncio.to_thread(wait_until, lambda: _refused(server, begun) != [], "no refusal was logged")
        assert _refused(server, begun) == ["GetServerInfo"]
        for call in silent:
            call.cancel()
