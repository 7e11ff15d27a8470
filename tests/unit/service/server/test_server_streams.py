"""Streams and large messages of the engine's gRPC server, and what reflection says."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf import json_format
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from headrace_engine.config import RuntimeConfig
from headrace_engine.service.server import EngineServer
from headrace_proto.server.reflection import SERVICES
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from headrace_proto.v1.runtime_pb2 import RuntimeConfig as WireRuntime
from support.clocks.waiting import LIMIT, happens
from support.scripted.engine import end, tokens


async def drain(call) -> list:
    return [message async for message in call]


# Which engine is meant.


# Failures.


# Readers that leave, and readers that do not read.


async def test_dropping_generate_closes_the_engines_iterator(front):
    front.engine.script = [tokens(0, 5), asyncio.Event()]
    call = front.requests.Generate(request_service_pb2.GenerateRequest(text="hi"))
    await call.read()
    call.cancel()
    await happens(front.engine.closed["generate"], "the engine is read on")


async def test_dropping_generated_elements_stops_nothing(front):
    front.engine.script = [tokens(0, 5), asyncio.Event()]
    call = front.requests.GeneratedElements(request_service_pb2.GeneratedElementsRequest(handle="h"))
    await call.read()
    call.cancel()
    await happens(front.engine.closed["read"], "the engine is read on")
    assert [name for name, _ in front.engine.calls] == ["read"]


async def test_bc161_streams_that_were_cancelled_unread_hold_nothing(front, log):
    """Each has more to send than fits the windows, so its handler is blocked in a write."""
    front.engine.script = [tokens(n, 5, text="x" * 100_000) for n in range(100)]
    ask = request_service_pb2.GenerateRequest(text="hi")
    before = len(asyncio.all_tasks())
    for _ in range(30):
        front.engine.closed["generate"].clear()
        call = front.requests.Generate(ask)
        await call.read()
        call.cancel()
        await happens(front.engine.closed["generate"], "the engine is read on")
    front.engine.script = [end(0)]
    assert len(await drain(front.requests.Generate(ask))) == 2
    assert len(asyncio.all_tasks()) <= before + 2
    assert [event for event in log if event["log_level"] == "error"] == []


async def test_bc170_many_open_streams_leave_room_for_other_calls(front):
    front.engine.script = [tokens(0, 5), asyncio.Event()]
    ask = request_service_pb2.GeneratedElementsRequest(handle="h")
    streams = [front.requests.GeneratedElements(ask) for _ in range(300)]
    await asyncio.gather(*(stream.read() for stream in streams))
    await front.health.Check(HealthCheckRequest(service="headrace.v1.ModelService"), timeout=LIMIT)
    await front.requests.StopRequest(request_service_pb2.StopRequestRequest(handle="h"), timeout=LIMIT)
    await front.facts.GetEngineStat(engine_service_pb2.GetEngineStatRequest(), timeout=LIMIT)
    for stream in streams:
        stream.cancel()


async def test_messages_of_many_megabytes_pass_both_ways(front):
    text = "x" * (6 << 20)
    front.engine.script = [tokens(0, 5, text=text), end(1)]
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(front.address, options=options) as channel:
        call = channel.unary_stream(
            "/headrace.v1.RequestService/Generate",
            request_serializer=request_service_pb2.GenerateRequest.SerializeToString,
            response_deserializer=request_service_pb2.GenerateResponse.FromString,
        )(request_service_pb2.GenerateRequest(text=text))
        messages = await drain(call)
    assert messages[1].elements.text == text
    ((_, (request,)),) = front.engine.calls
    assert request.prompt == text


# Calling by hand.


async def test_bc183_reflection_describes_the_services(front):
    def look() -> tuple[list[str], dict]:
        with grpc.insecure_channel(front.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            found = database.FindFileContainingSymbol("headrace.v1.RequestService")
            return list(database.get_services()), {method.name for method in found.service[0].method}

    services, methods = await asyncio.to_thread(look)
    assert sorted(services) == sorted(SERVICES)
    assert {"StartRequest", "Generate", "GeneratedElements"} <= methods


async def test_bc183_reflection_can_be_turned_off(engine):
    server = EngineServer(engine, reflection=False)
    address = server.listen("127.0.0.1:0")
    await server.start()

    def look() -> grpc.StatusCode:
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        return caught.value.code()

    assert await asyncio.to_thread(look) is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


async def test_bc183_answers_read_well_as_json(front):
    messages = await drain(front.requests.Generate(request_service_pb2.GenerateRequest(model_name="smol", text="hi")))
    last = json_format.MessageToDict(messages[-1])
    assert (last["status"], last["end"]["finishReason"]) == ("GENERATE_STATUS_FINISHED", "FINISH_REASON_EOS")
    assert json_format.MessageToDict(messages[1])["elements"]["tokenIds"] == [5, 6]


@pytest.mark.parametrize(
    ("sent", "expected"), [({}, RuntimeConfig()), ({"num_blocks": 0, "enable_prefix_cache": False}, None)]
)
async def test_bc195_zeros_of_an_install_reach_the_engine(front, sent, expected):
    await front.models.InstallModel(model_service_pb2.InstallModelRequest(config=WireRuntime(**sent)))
    ((_, (config, _)),) = front.engine.calls
    assert config == (expected or RuntimeConfig(num_blocks=0, enable_prefix_cache=False))
