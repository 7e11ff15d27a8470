"""Reads what a failed call reported, the way any google.rpc reader does."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from headrace_proto.v1 import model_pb2
from headrace_proto.v1 import status_pb2 as ours
from support.scripted.engine_answers import refuse

_KINDS = {
    "type.googleapis.com/google.rpc.ErrorInfo": error_details_pb2.ErrorInfo,
    "type.googleapis.com/google.rpc.RetryInfo": error_details_pb2.RetryInfo,
    "type.googleapis.com/google.rpc.BadRequest": error_details_pb2.BadRequest,
    "type.googleapis.com/google.rpc.RequestInfo": error_details_pb2.RequestInfo,
    "type.googleapis.com/headrace.v1.ModelStateInfo": model_pb2.ModelStateInfo,
    "type.googleapis.com/headrace.v1.QueueInfo": ours.QueueInfo,
}


class Failure:
    """A status with its details by name; `reason` is the ErrorInfo's."""

    def __init__(self, code: int, message: str, details: Any) -> None:
        self.code = next(each for each in grpc.StatusCode if each.value[0] == code)
        self.message = message
        self.details = {}
        for detail in details:
            kind = _KINDS[detail.type_url]
            self.details[kind.DESCRIPTOR.name] = kind.FromString(detail.value)
        info = self.details.get("ErrorInfo")
        if info is not None:
            assert info.domain == "headrace"
        self.reason = info.reason if info else ""
        self.facts = dict(info.metadata) if info else {}

    @property
    def reported(self) -> tuple[grpc.StatusCode, str]:
        return self.code, self.reason

    @property
    def retry_seconds(self) -> float:
        delay = self.details["RetryInfo"].retry_delay
        return delay.seconds + delay.nanos / 1e9

    @property
    def fields(self) -> list[str]:
        return [violation.field for violation in self.details["BadRequest"].field_violations]


def failure_of(error: grpc.aio.AioRpcError) -> Failure:
    """The status in the trailers, which must agree with the call's own."""
    raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if raw is None:
        return Failure(error.code().value[0], error.details() or "", [])
    status = status_pb2.Status.FromString(raw)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    return Failure(status.code, status.message, status.details)


async def failing(call: Any) -> Failure:
    """Awaits a call, unary or streaming, that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if isinstance(call, grpc.aio.UnaryStreamCall):
            async for _ in call:
                pass
        else:
            await call
    return failure_of(caught.value)


def carried(status: Any) -> Failure:
    """A status that an answer carries as data."""
    return Failure(status.code, status.message, status.details)


def fails(code: grpc.StatusCode, reason: str, message: str = "") -> Any:
    """What an engine answers to a call that it refuses."""

    async def script(request: Any, context: Any) -> None:
        await refuse(context, code, reason, message=message)

    return script
