"""Every call of the contract, as its descriptors list them, with bytes that are no message and with too many."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from headrace_proto.pure.limits import MAX_REQUEST_BYTES
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2
from support.clocks.waiting import eventually
from unit.gateway.access.keyed import Auth, Keyed
from unit.gateway.conftest import Front
from unit.gateway.failures import failure_of

METHODS: list[MethodDescriptor] = [
    method
    for module in (engine_service_pb2, model_service_pb2, request_service_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def sent(front: Front, method: MethodDescriptor, data: bytes, auth: Auth) -> Any:
    """Call a method with raw bytes."""
    streams = ("unary", "stream")[method.client_streaming], ("unary", "stream")[method.server_streaming]
    call = getattr(front.channel, "_".join(streams))(f"/{method.containing_service.full_name}/{method.name}")
    return call(iter([data]) if method.client_streaming else data, metadata=auth)


async def refused(front: Front, method: MethodDescriptor, data: bytes, auth: Auth) -> tuple[grpc.StatusCode, str]:
    made = sent(front, method, data, auth)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method.server_streaming:
            while await made.read() is not grpc.aio.EOF:
                pass
        else:
            await made
    return failure_of(caught.value).reported


@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x08"], ids=["tag", "length", "cut"])
async def test_bytes_that_are_no_message_are_refused(engine, keyed: Keyed, data: bytes) -> None:
    auth = keyed.key("ops", admin=True)
    front = await keyed.gateway(e1=engine)
    asked = len(engine.heard)
    for method in METHODS:
        outcome = await refused(front, method, data, auth)
        assert outcome == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), method.name
    assert len(engine.heard) == asked
    await eventually(lambda: front.gateway.calls.count == 0, "a call is still counted")


async def test_a_message_that_is_too_large_is_refused(engine, keyed: Keyed) -> None:
    auth = keyed.key("ops", admin=True)
    front = await keyed.gateway(e1=engine)
    asked, large = len(engine.heard), bytes(MAX_REQUEST_BYTES + 1)
    for method in METHODS:
        code, _ = await refused(front, method, large, auth)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, method.name
    assert len(engine.heard) == asked
    await eventually(lambda: front.gateway.calls.count == 0, "a call is still counted")


async def test_strangers_are_refused_before_their_bytes_are_read(engine, keyed: Keyed) -> None:
    keyed.key("ops", admin=True)
    front = await keyed.gateway(e1=engine)
    for method in METHODS:
        for data in (b"\xff" * 20, bytes(MAX_REQUEST_BYTES)):
            outcome = await refused(front, method, data, ())
            assert outcome == (grpc.StatusCode.UNAUTHENTICATED, "BAD_API_KEY"), method.name
