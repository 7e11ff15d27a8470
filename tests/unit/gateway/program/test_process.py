"""The real process: binding, draining, logs."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2_grpc
from headrace_proto.v1 import (
    engine_service_pb2,
    model_service_pb2,
)
from headrace_proto.v1 import request_service_pb2 as wire
from support.scripted.engine_answers import element, refuse
from support.servers.ports import free_port
from unit.gateway.conftest import until
from unit.gateway.failures import failing
from unit.gateway.gateway_process import listening

CANARY = "canary-7f3a"


async def test_bc194_port_0_prints_the_real_port(launch, engine):
    gateway = await (await launch(*listening(engine))).connect()
    assert gateway.port
    info = await gateway.facts.GetServerInfo(engine_service_pb2.GetServerInfoRequest())
    assert info.engines[0].engine == "e1"


@pytest.mark.parametrize("holder", ["gateway", "plain listener", "listener on another address of the name"])
async def test_bc194_a_port_in_use_is_one_line_that_names_it(launch, engine, holder):
    host = "127.0.0.1"
    with socket.socket() as plain:
        if holder == "gateway":
            port = (await (await launch(*listening(engine))).connect()).port
        else:
            plain.bind((host, 0))
            plain.listen()
            port = plain.getsockname()[1]
        if holder == "listener on another address of the name":
            host = "localhost"
        second = await launch(*listening(engine), "--listen", f"{host}:{port}")
        assert await second.ended() == 1
    assert second.text == f"headrace-gateway: cannot listen on {host}:{port}: Address already in use\n"


@pytest.mark.parametrize("listen", ["no-such-host.invalid:7070", "192.0.2.1:7070"])
async def test_bc194_a_foreign_address_is_refused_in_one_line(launch, engine, listen):
    gateway = await launch(*listening(engine), "--listen", listen)
    assert await gateway.ended() == 1
    assert gateway.text.startswith(f"headrace-gateway: cannot listen on {listen}: ")
    assert gateway.text.count("\n") == 1


class TestDrain:
    """SIGTERM: nothing new, and what runs may finish."""

    @pytest.fixture
    async def tokens(self, engine):
        """Releases the rest of every stream."""
        go_on = asyncio.Event()

        async def held(request, context):
            await context.write(element(request.handle, 0, 1))
            await go_on.wait()
            for position in range(1, 200):
                await context.write(element(request.handle, position, 1))

        engine.script["GeneratedElements"] = held
        return go_on

    async def reading(self, gateway, engine, count):
        handle = engine.hold("r1").handle.replace("self", "e1", 1)
        streams = [
            gateway.requests.GeneratedElements(wire.GeneratedElementsRequest(handle=handle)) for _ in range(count)
        ]
        for stream in streams:
            await stream.read()
        return streams

    async def read_on(self, stream):
        count = 1
        while await stream.read() is not grpc.aio.EOF:
            count += 1
        return count

    async def test_bc173_streams_finish_and_new_requests_are_refused(self, launch, engine, tokens):
        gateway = await (await launch(*listening(engine))).connect()
        watch = gateway.health.Watch(health_pb2.HealthCheckRequest())
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        streams = await self.reading(gateway, engine, 3)
        gateway.signal(signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await gateway.event("draining"))["streams"] == 3
        start = wire.StartRequestRequest(model_name="smol")
        for call in (
            gateway.requests.StartRequest(start),
            gateway.requests.Generate(wire.GenerateRequest(model_name="smol")),
            gateway.models.InstallModel(model_service_pb2.InstallModelRequest()),
            self.read_on(gateway.models.WatchModel(model_service_pb2.WatchModelRequest())),
            self.read_on(gateway.facts.WatchEngineStat(engine_service_pb2.WatchEngineStatRequest())),
        ):
            failure = await failing(call)
            assert failure.reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert failure.retry_seconds > 0
        assert (await gateway.facts.GetServerInfo(engine_service_pb2.GetServerInfoRequest())).draining
        tokens.set()
        assert [await self.read_on(stream) for stream in streams] == [200] * 3
        assert await gateway.ended() == 0
        assert "drain_limit_reached" not in gateway.text

    async def test_what_is_left_at_the_limit_is_told_to_come_back(self, launch, engine, tokens):
        gateway = await (await launch(*listening(engine), "--drain-limit", "0.2")).connect()
        (stream,) = await self.reading(gateway, engine, 1)
        gateway.signal(signal.SIGTERM)
        assert (await failing(stream.read())).reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await gateway.ended() == 0
        reached = next(event for event in gateway.events if event["event"] == "drain_limit_reached")
        assert reached["streams"] == 1

    async def test_watches_do_not_hold_it_up(self, launch, engine):
        gateway = await (await launch(*listening(engine))).connect()
        watch = gateway.models.WatchModel(model_service_pb2.WatchModelRequest())
        await watch.read()
        stats = gateway.facts.WatchEngineStat(engine_service_pb2.WatchEngineStatRequest())
        await stats.read()
        gateway.signal(signal.SIGTERM)
        for stream in (watch, stats):
            assert (await failing(self.read_on(stream))).reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await gateway.ended() == 0
        assert next(event for event in gateway.events if event["event"] == "draining")["streams"] == 0

    async def test_a_second_signal_ends_it_at_once(self, launch, engine, tokens):
        gateway = await (await launch(*listening(engine))).connect()
        (stream,) = await self.reading(gateway, engine, 1)
        gateway.signal(signal.SIGINT)
        await gateway.event("draining")
        gateway.signal(signal.SIGINT)
        assert (await failing(stream.read())).reported == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await gateway.ended() == 0


async def test_bc197_neither_prompts_nor_output_nor_keys_reach_the_log(launch, engine):
    async def quoting(request, context):
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "BAD_TEMPLATE", message=f"template says {CANARY}")

    async def broken(request, context):
        raise RuntimeError(CANARY)

    gateway = await (await launch(*listening(engine))).connect()
    metadata = (("authorization", f"Bearer {CANARY}"),)
    prompt = wire.GenerateRequest(model_name="smol", text=CANARY)
    assert CANARY in [message.elements.text async for message in gateway.requests.Generate(prompt, metadata=metadata)]
    engine.script["StartRequest"] = quoting
    start = wire.StartRequestRequest(model_name="smol", text=CANARY, request_id="r1")
    start.config.stop_words.append(CANARY)
    assert CANARY in (await failing(gateway.requests.StartRequest(start, metadata=metadata))).message
    engine.script["Generate"] = broken
    await failing(gateway.requests.Generate(prompt))
    gateway.signal(signal.SIGTERM)
    assert await gateway.ended() == 0
    assert CANARY not in gateway.text
    refused = next(event for event in gateway.events if event["event"] == "request_refused")
    assert (refused["reason"], refused["code"], refused["method"]) == (
        "BAD_TEMPLATE",
        "INVALID_ARGUMENT",
        "StartRequest",
    )
    assert (refused["request_id"], refused["model_name"]) == ("r1", "smol")


async def test_bc183_grpcurl_finds_and_calls_everything_by_reflection(launch, engine):
    grpcurl = Path(sys.executable).parent / "grpcurl"
    if not grpcurl.exists():
        pytest.skip("grpcurl is not installed")
    gateway = await (await launch(*listening(engine))).connect()

    async def run(*arguments):
        process = await asyncio.create_subprocess_exec(
            grpcurl, "-plaintext", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output
        return output.decode()

    address = f"127.0.0.1:{gateway.port}"
    assert "headrace.v1.RequestService" in (await run(address, "list")).splitlines()
    method = await run(address, "describe", "headrace.v1.RequestService.StartRequest")
    assert "returns ( .headrace.v1.StartRequestResponse )" in method
    health = await run("-d", '{"service": "headrace.v1.ModelService"}', address, "grpc.health.v1.Health/Check")
    assert json.loads(health) == {"status": "SERVING"}
    request = '{"model_name": "smol", "text": "Hello", "config": {"max_new_tokens": 16, "seed": "7"}}'
    streamed = await run("-d", request, address, "headrace.v1.RequestService/Generate")
    assert '"text": "Hello"' in streamed
    assert "GENERATE_STATUS_FINISHED" in streamed
    assert engine.asked("Generate")[0].request.config.seed == 7


async def test_bc183_reflection_can_be_turned_off(launch, engine):
    gateway = await (await launch(*listening(engine), "--no-reflection")).connect()
    call = reflection_pb2_grpc.ServerReflectionStub(gateway.channel).ServerReflectionInfo()
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_restarted_gateway_serves_the_same_handles(launch, engine):
    gateway = await (await launch(*listening(engine, port=free_port()))).connect()
    start = wire.StartRequestRequest(model_name="smol", request_id="r1")
    handle = (await gateway.requests.StartRequest(start)).request.handle
    gateway.signal(signal.SIGKILL)
    await gateway.ended()
    again = await (await launch(*listening(engine, port=gateway.port))).connect()
    found = await again.requests.GetRequest(wire.GetRequestRequest(handle=handle), wait_for_ready=True)
    assert found.request.request.handle == handle
    start.attempt = 1
    assert (await again.requests.StartRequest(start)).request.handle == handle
    await until(engine, lambda: len(engine.requests) == 1)
