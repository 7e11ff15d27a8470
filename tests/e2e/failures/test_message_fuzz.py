"""Random messages to every call of an engine and a gateway: each has an answer or the right code.

Most of those that start or compute something, or are about a request, are right but for one field.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from headrace import Client
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from headrace_proto.v1.request_service_pb2 import StartRequestResponse
from headrace_proto.v1.session_pb2 import SessionResponse
from support.clocks.waiting import LIMIT
from support.contract.random_messages import RandomMessages
from support.contract.right_messages import ASKING, STARTS, RightMessages
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
CHOSEN = [*METHODS, *(method for method in METHODS if method.name in {*STARTS, *ASKING} for _ in range(3))]
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

LOST = "Internal error from Core"
"""What grpc.aio says of a call that ended while a message of it was written. Its status is lost."""

NEVER_UNKNOWN = {"ReleaseRequest", "Session"}
"""Methods that take handles, and never fail for one: releases succeed, and a session says it of the handle alone."""

OTHER = "other"
"""Owner of some requests: an engine believes a peer on its machine."""

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


async def outcome(channel: grpc.aio.Channel, method: MethodDescriptor, *messages: bytes) -> tuple[str, bytes]:
    """The code of a call once it has answered, or LOST, and the answer. A session is asked until it answers a ping."""
    limit = 0.2 if method.name in WAITING else LIMIT
    path, session = f"/{method.containing_service.full_name}/{method.name}", len(messages) > 1
    if session:
        call = channel.stream_stream(path)(_spoken(messages), timeout=limit)
    else:
        call = channel.unary_stream(path)(messages[0], timeout=limit)
    try:
        async for answer in call:
            if session and not SessionResponse.FromString(answer).HasField("pong"):
                continue
            call.cancel()
            return "OK", answer
    except grpc.aio.AioRpcError as error:
        return LOST if error.details() == LOST else error.code().name, b""
    return "OK", b""


async def _spoken(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    """The messages of a caller that then listens."""
    for message in messages:
        yield message
    await asyncio.Event().wait()


class Fuzz:
    """Sends messages at random.

    Args:
        channels: to an engine, and to a gateway in front of it.

    Attributes:
        found: how often each method had each outcome.
    """

    def __init__(self, channels: list[grpc.aio.Channel], seed: int) -> None:
        self._choose, self._channels = random.Random(seed), channels
        self._right = RightMessages(self._choose)
        texts = {
            "model_name": ["tiny", "none"],
            "engine_ids": ["e1"],
            "handle": self._right.handles,
            "owner": ["", OTHER],
        }
        self._served = RandomMessages(self._choose, texts)
        self._other = RandomMessages(self._choose, {"model_name": ["none"], "path": ["/none"]})
        self.found: Counter[tuple[str, str]] = Counter()

    async def send(self, left: Iterator[int]) -> None:
        """Send messages until there are none left."""
        for _ in left:
            method = self._choose.choice(CHOSEN)
            channel = self._choose.choice(self._channels)
            direct = channel is self._channels[0]
            owner = OTHER if direct and self._choose.random() < 0.3 else ""
            messages = self._messages(method, owner)
            code, answer = await outcome(channel, method, *messages)
            if code == LOST:
                continue
            if code == "UNAVAILABLE" and not direct:
                continue  # A gateway says so of an engine that has not answered its polls for some seconds.
            self.found[method.name, code] += 1
            self._look(method, messages, code, answer)

    def _messages(self, method: MethodDescriptor, owner: str) -> list[bytes]:
        right = self._right.message(method.name, owner)
        if right is None or self._choose.random() < 0.3:
            verbs = method.containing_service.name == "ModelService"  # None that takes the model away.
            return [(self._other if verbs else self._served).data(method.input_type)]
        if method.name == "Session":
            return [self._changed(message, 0.5) for message in self._right.session()]
        return [self._changed(right, 0.8)]

    def _changed(self, right: Message, share: float) -> bytes:
        """A message that is right, or right but for one field."""
        return self._served.near(right) if self._choose.random() < share else right.SerializeToString()

    def _look(self, method: MethodDescriptor, messages: list[bytes], code: str, answer: bytes) -> None:
        try:
            sent = GetMessageClass(method.input_type).FromString(messages[0])
        except DecodeError:
            late = {"DEADLINE_EXCEEDED"} if method.name in WAITING else set()
            assert code in {"INVALID_ARGUMENT", *late}, (method.name, code, messages)
            return
        if answer and method.name == "StartRequest":
            handle = StartRequestResponse.FromString(answer).request.handle
            if handle:
                self._right.started(handle, sent.owner)  # type: ignore[attr-defined]


async def fuzz(servers: list[Server], count: int, seed: int) -> Counter[tuple[str, str]]:
    """Send messages; how often each method had each outcome."""
    channels = [grpc.aio.insecure_channel(server.address) for server in servers]
    try:
        fuzzing, left = Fuzz(channels, seed), iter(range(count))
        await asyncio.gather(*(fuzzing.send(left) for _ in range(AT_ONCE)))
    finally:
        for channel in channels:
            await channel.close()
    return fuzzing.found


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
    assert {(method, "OK") for method in ASKING} <= set(found)
    assert {(method, "NOT_FOUND") for method in ASKING if method not in NEVER_UNKNOWN} <= set(found)
    for server in servers:
        server.check()
        assert [event for event in server.events if event.get("level") not in ("info", "debug", "warning")] == []
    assert max(growth.least()) < MOST, growth.least()
    with Client(servers[1].address) as client:
        assert "".join(client.generate("tiny", "Once", max_new_tokens=4, ignore_eos=True))
        for server in servers[:1]:
            with Client(server.address) as direct:
                release_all(direct)
