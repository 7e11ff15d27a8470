"""Random messages to every call of an engine and a gateway: each has an answer or the right code.

Most of those that start or compute something are right but for one field.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from headrace import Client
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from headrace_proto.v1.generation_pb2 import GenerationConfig, Lease, ResponseFormat, TokenIds
from support.clocks.waiting import LIMIT
from support.contract.random_messages import RandomMessages
from support.models.tiny_models import make_tiny_llama
from support.servers.books import release_all
from support.servers.growth import ROUNDS, Growth
from support.servers.processes import Server, engine_server, gateway_server

METHODS: list[MethodDescriptor] = [
    method
    for module in (engine_service_pb2, model_service_pb2, request_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
CONFIG = GenerationConfig(
    temperature=0.8,
    top_k=5,
    top_p=0.9,
    min_p=0.01,
    seed=7,
    max_new_tokens=3,
    min_new_tokens=1,
    n=2,
    stop_words=["zz"],
    bad_words=["q"],
    repetition_penalty=1.1,
    logprobs=True,
    top_logprobs=2,
    logit_bias={5: 1.5},
    response_format=ResponseFormat(regex="[a-z ]{1,40}"),
    lease=Lease(running=Duration(seconds=1), ended=Duration(seconds=1)),
)
PROMPT = TokenIds(ids=[3, 4, 5, 6])
RIGHT: dict[str, Message] = {
    "StartRequest": request_service_pb2.StartRequestRequest(model_name="tiny", token_ids=PROMPT, config=CONFIG),
    "Generate": request_service_pb2.GenerateRequest(model_name="tiny", token_ids=PROMPT, config=CONFIG),
    "Embed": request_service_pb2.EmbedRequest(
        model_name="tiny", inputs=[request_service_pb2.EmbedInput(token_ids=PROMPT)]
    ),
    "Tokenize": engine_service_pb2.TokenizeRequest(model_name="tiny", text="Once upon"),
    "Detokenize": engine_service_pb2.DetokenizeRequest(model_name="tiny", token_ids=[3, 4, 5]),
}
"""Messages that are answered, by the method that takes them: what they start is released by its lease."""

CHOSEN = [*METHODS, *(method for method in METHODS if method.name in RIGHT for _ in range(3))]
"""Methods, as often as they are called."""

CODES = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "DEADLINE_EXCEEDED",
}
WAITING = {"SyncRequest", "GetRequest", *(method.name for method in METHODS if method.server_streaming)}
"""Calls that may wait for what never comes: they have a fifth of a second."""

AT_ONCE = 32
MOST = 24 << 20
"""Bytes that each round of messages may add to a process: handles and keys of what was started are kept for a while."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """An engine with a running model, and a gateway."""
    with engine_server("e1", "--no-hub") as engine, gateway_server({"e1": engine.address}) as gateway:
        gateway.wait_event("engine_reached")
        with Client(engine.address) as client:
            client.install_model("tiny", path=str(make_tiny_llama(tmp_path / "tiny")), max_batch=4, num_threads=1)
            client.start_model("tiny")
        yield [engine, gateway]


async def outcome(channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes) -> str:
    """The code of a call with one message, once it has answered."""
    limit = 0.2 if method.name in WAITING else LIMIT
    call = channel.unary_stream(f"/{method.containing_service.full_name}/{method.name}")(data, timeout=limit)
    try:
        async for _ in call:
            call.cancel()
            return "OK"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def fuzz(servers: list[Server], count: int, seed: int) -> Counter[tuple[str, str]]:
    """Send messages; how often each method had each outcome."""
    found: Counter[tuple[str, str]] = Counter()
    choose = random.Random(seed)
    texts = {"model_name": ["tiny", "none"], "engine_ids": ["e1"], "handle": ["e1/none"], "owner": [""]}
    served, other = RandomMessages(choose, texts), RandomMessages(choose, {"model_name": ["none"], "path": ["/none"]})
    left = iter(range(count))

    async def send(channels: list[grpc.aio.Channel]) -> None:
        for _ in left:
            method = choose.choice(CHOSEN)
            verbs = method.containing_service.name == "ModelService"  # None that takes the model away.
            if method.name in RIGHT and choose.random() < 0.7:
                data = served.near(RIGHT[method.name])
            else:
                data = (other if verbs else served).data(method.input_type)
            channel = choose.choice(channels)
            code = await outcome(channel, method, data)
            if code == "UNAVAILABLE" and channel is not channels[0]:
                continue  # A gateway says so of an engine that has not answered its polls for some seconds.
            found[method.name, code] += 1
            try:
                GetMessageClass(method.input_type).FromString(data)
            except DecodeError:
                late = {"DEADLINE_EXCEEDED"} if method.name in WAITING else set()
                assert code in {"INVALID_ARGUMENT", *late}, (method.name, code, data)

    channels = [grpc.aio.insecure_channel(server.address) for server in servers]
    try:
        await asyncio.gather(*(send(channels) for _ in range(AT_ONCE)))
    finally:
        for channel in channels:
            await channel.close()
    return found


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)])]
)
async def test_no_message_crashes_or_stays(servers: list[Server], count: int) -> None:
    found: Counter[tuple[str, str]] = Counter()
    growth = Growth(server.process.pid for server in servers)
    for seed in range(ROUNDS):
        found += await fuzz(servers, count // ROUNDS, seed)
        growth.read()
    assert {code for _, code in found} <= CODES, found
    assert {method for method, _ in found} == {method.name for method in METHODS}
    for server in servers:
        server.check()
        assert [event for event in server.events if event.get("level") not in ("info", "debug", "warning")] == []
    assert max(growth.least()) < MOST, growth.least()
    with Client(servers[1].address) as client:
        assert "".join(client.generate("tiny", "Once", max_new_tokens=4, ignore_eos=True))
        for server in servers[:1]:
            with Client(server.address) as direct:
                release_all(direct)
